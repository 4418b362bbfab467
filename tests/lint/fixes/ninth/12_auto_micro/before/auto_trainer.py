import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def is_oom(error):
    return "CUDA out of memory" in str(error)


class AutoTrainer:
    def __init__(self, module, loss_fn, optimizer, loader, accumulate=1):
        self.model = DistributedDataParallel(module.cuda(), broadcast_buffers=False)
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.loader = loader
        self.accumulate = accumulate

    def _sync_context(self, last):
        return contextlib.nullcontext() if last else self.model.no_sync()

    def _train_micro(self, x, y, share, last):
        with self._sync_context(last):
            loss = self.loss_fn(self.model(x), y) * share
            loss.backward()
        return loss.detach()

    def _train_micros(self, x, y):
        self.optimizer.zero_grad()
        total = torch.zeros((), device="cuda")
        xs, ys = x.chunk(self.accumulate), y.chunk(self.accumulate)
        for i, (mx, my) in enumerate(zip(xs, ys)):
            total += self._train_micro(mx, my, len(mx) / len(x), i == len(xs) - 1)
        return total

    def _train_batch(self, x, y):
        while True:
            failed = 0
            total = None
            try:
                total = self._train_micros(x, y)
            except RuntimeError as error:
                if not is_oom(error):
                    raise
                failed = 1
            flag = torch.tensor([failed], device="cuda")
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            if not flag.item():
                self.optimizer.step()
                return total
            if self.accumulate >= len(x):
                raise RuntimeError("a single sample does not fit")
            self.accumulate = min(self.accumulate * 2, len(x))
            torch.cuda.empty_cache()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self._train_batch(x.cuda(), y.cuda())
