"""Model engine of one tensor-parallel rank."""
import contextlib
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)


@dataclass
class Batch:
    names: list
    tokens: torch.Tensor
    blocks: list


class ModelEngine:
    def __init__(self, model, pool, tp_group, max_tokens, max_batch):
        self.model = model
        self.pool = pool
        self.tp_group = tp_group
        self.max_tokens = max_tokens
        self.max_batch = max_batch
        self.graphs = {}

    def warmup_batch(self, tokens, requests):
        length = tokens // requests
        if self.pool.available() < requests * self.pool.blocks_for(length):
            return None
        names = [f"warmup-{i}" for i in range(requests)]
        blocks = [self.pool.take(name, length) for name in names]
        return Batch(names, torch.zeros(requests, length, dtype=torch.long, device="cuda"), blocks)

    @contextlib.contextmanager
    def borrowed(self, batch):
        try:
            yield batch
        finally:
            if batch is not None:
                for name in batch.names:
                    self.pool.give_back(name)

    @torch.inference_mode()
    def forward(self, batch):
        return self.model(batch.tokens, batch.blocks)

    def all_ranks_have(self, batch):
        ready = torch.tensor(int(batch is not None), device="cuda")
        dist.all_reduce(ready, op=dist.ReduceOp.MIN, group=self.tp_group)
        return bool(ready.item())

    def general_warmup(self):
        shapes = [(self.max_tokens, 1), (self.max_tokens, self.max_batch), (self.max_batch, self.max_batch), (1, 1)]
        for tokens, requests in shapes:
            with self.borrowed(self.warmup_batch(tokens, requests)) as batch:
                if self.all_ranks_have(batch):
                    log.info("warm-up with %d tokens in %d requests", tokens, requests)
                    self.forward(batch)
                    torch.cuda.synchronize()

    def serve(self, requests):
        for prompt in requests:
            tokens = torch.tensor([prompt], device="cuda")
            name = f"request-{id(prompt)}"
            batch = Batch([name], tokens, [self.pool.take(name, tokens.size(1))])
            with self.borrowed(batch):
                yield self.forward(batch)[:, -1].argmax(-1).item()
