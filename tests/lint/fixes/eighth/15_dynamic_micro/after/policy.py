import torch
from torch import nn

from length_split import dynamic_split


class Policy:
    def __init__(self, module, optimizer, token_limit, dp_group):
        self.module = module
        self.optimizer = optimizer
        self.token_limit = token_limit
        self.dp_group = dp_group

    def _logp(self, part):
        logits = self.module(part["tokens"])[:, :-1]
        logp = torch.log_softmax(logits.float(), dim=-1)
        picked = logp.gather(-1, part["tokens"][:, 1:, None]).squeeze(-1)
        return picked * part["mask"][:, 1:]

    @torch.no_grad()
    def old_logp(self, batch):
        parts, order = dynamic_split(batch, self.token_limit, dp_group=self.dp_group)
        pieces = torch.cat([self._logp(part) for part in parts])
        rows = torch.tensor([row for group in order for row in group], device=pieces.device)
        restored = torch.empty_like(pieces)
        restored[rows] = pieces
        return restored

    def update(self, batch, mini_size):
        for start in range(0, batch["tokens"].shape[0], mini_size):
            mini = {k: v[start:start + mini_size] for k, v in batch.items()}
            parts, _ = dynamic_split(mini, self.token_limit, dp_group=self.dp_group)
            for part in parts:
                ratio = (self._logp(part) - part["old"]).exp()
                gain = ratio * part["advantage"][:, None] * part["mask"][:, 1:]
                loss = -gain.sum() / mini["mask"].sum()
                loss.backward()
            nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
