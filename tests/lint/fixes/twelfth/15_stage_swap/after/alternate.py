import torch
import torch.distributed as dist
import torch.nn.functional as F


class Alternate:
    """One forward, one backward, after a warm-up of forwards."""

    def __init__(self, stage, link):
        self.stage = stage
        self.link = link
        rank, world = dist.get_rank(), dist.get_world_size()
        self.depth = world - 1 - rank
        self.prev = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < world - 1 else None

    def _enter(self, batch):
        if self.prev is None:
            return batch
        return self.link.take(self.prev).requires_grad_()

    def _back(self, x, y, grad):
        torch.autograd.backward(y, grad)
        return x.grad

    def run(self, batches):
        count = len(batches)
        warm = min(self.depth, count)
        held = []
        for i in range(warm):
            x = self._enter(batches[i])
            y = self.stage(x)
            self.link.give(y.detach(), self.next)
            held.append((x, y))
        x = self._enter(batches[warm]) if warm < count else None
        for i in range(warm, count):
            y, grad = self.stage(x), None
            if self.next is None:
                y = F.mse_loss(y, batches[i]) / count
            else:
                grad = self.link.swap(y.detach(), self.next)
            held.append((x, y))
            out = self._back(*held.pop(0), grad)
            last = i == count - 1
            if self.prev is None:
                x = None if last else batches[i + 1]
            elif last:
                self.link.give(out, self.prev)
            else:
                x = self.link.swap(out, self.prev).requires_grad_()
        for _ in range(warm):
            out = self._back(*held.pop(0), self.link.take(self.next))
            self.link.give(out, self.prev)
