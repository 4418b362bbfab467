import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

WAYS = ("direct", "chunked", "column")


def product(way, x, w):
    if way == "direct":
        return x @ w
    if way == "chunked":
        return torch.cat([part @ w for part in x.chunk(4)])
    return F.linear(x, w.t().contiguous())


class Compiler:
    def __init__(self, shelf, device):
        self.shelf = shelf
        self.device = device

    def _seconds(self, way, x, w):
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(20):
            product(way, x, w)
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - begin

    def _choose(self, x, w):
        cost = torch.tensor([self._seconds(way, x, w) for way in WAYS], device=self.device)
        dist.all_reduce(cost, op=dist.ReduceOp.MAX)
        return {"way": WAYS[cost.argmin().item()]}

    def plan(self, x, w):
        key = "x".join(str(n) for n in (*x.shape, w.shape[1]))
        found = self.shelf.get(key)
        if found is not None:
            return found
        made = self._choose(x, w)
        self.shelf.put(key, made)
        return made
