import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

from fetcher import SampleFetcher


class DraftTrainer:
    def __init__(self, draft, jobs, store, cfg):
        self.model = FSDP(draft.cuda(), sharding_strategy=ShardingStrategy.FULL_SHARD)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.fetcher = SampleFetcher(jobs, store, cfg.min_loss_tokens, cfg.micro_batch)
        self.per_step = cfg.samples_per_step // dist.get_world_size()
        self.accumulate = max(self.per_step // cfg.micro_batch, 1)

    def _loss(self, hidden, mask):
        guess = self.model(hidden[:, :-1])
        error = (guess - hidden[:, 1:]).square().mean(-1)
        mask = mask[:, 1:]
        return (error * mask).sum() / mask.sum().clamp(min=1)

    def train_step(self):
        for hidden, mask in self.fetcher.batches(self.per_step):
            loss = self._loss(hidden.cuda(), mask.cuda())
            (loss / self.accumulate).backward()
        self.model.clip_grad_norm_(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps):
        for _ in range(steps):
            self.train_step()
