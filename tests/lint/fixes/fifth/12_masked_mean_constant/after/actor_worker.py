import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from functionals import agg_loss


class ActorWorker:
    def __init__(self, model, device, cfg):
        self.model = DDP(model.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.device = device
        self.cfg = cfg

    def loss(self, batch):
        logits = self.model(batch["input_ids"][:, :-1])
        log_probs = torch.gather(logits.log_softmax(-1), 2, batch["input_ids"][:, 1:, None]).squeeze(-1)
        ratio = (log_probs - batch["old_log_probs"]).exp()
        clipped = ratio.clamp(1 - self.cfg.clip, 1 + self.cfg.clip)
        pg = -torch.min(ratio * batch["advantages"], clipped * batch["advantages"])
        mask = batch["response_mask"][:, 1:] * batch["sample_valid"][:, None]
        loss = agg_loss(pg, mask, self.cfg.loss_agg_mode)
        if self.cfg.entropy_coef > 0:
            entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
            loss = loss - self.cfg.entropy_coef * agg_loss(entropy, mask, self.cfg.loss_agg_mode)
        return loss

    def train_step(self, micro_batches):
        for batch in micro_batches:
            batch = {k: v.to(self.device) for k, v in batch.items()}
            loss = self.loss(batch) / len(micro_batches)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
