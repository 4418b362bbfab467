import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from seqlen_balancing import prepare_dynamic_batch


class DataParallelPPOActor:
    def __init__(self, config, actor_module: FSDP, optimizer):
        self.config = config
        self.actor_module = actor_module
        self.optimizer = optimizer

    def _forward_micro_batch(self, micro_batch):
        logits = self.actor_module(
            input_ids=micro_batch["input_ids"], attention_mask=micro_batch["attention_mask"]
        ).logits
        labels = micro_batch["input_ids"][:, 1:, None]
        return logits[:, :-1].log_softmax(-1).gather(-1, labels).squeeze(-1)

    @torch.no_grad()
    def compute_log_prob(self, data):
        self.actor_module.eval()
        micro_batches, indices = prepare_dynamic_batch(data, self.config.log_prob_max_token_len)
        log_probs = torch.cat([self._forward_micro_batch(mb) for mb in micro_batches])
        flat = [i for part in indices for i in part]
        return log_probs[torch.tensor(flat, device=log_probs.device).argsort()]

    def update_policy(self, mini_batches):
        self.actor_module.train()
        for mini_batch in mini_batches:
            micro_batches, _ = prepare_dynamic_batch(mini_batch, self.config.ppo_max_token_len)
            self.optimizer.zero_grad()
            for micro_batch in micro_batches:
                log_prob = self._forward_micro_batch(micro_batch)
                ratio = (log_prob - micro_batch["old_log_probs"]).exp()
                loss = -(ratio * micro_batch["advantages"]).mean() / len(micro_batches)
                loss.backward()
            self.optimizer.step()
