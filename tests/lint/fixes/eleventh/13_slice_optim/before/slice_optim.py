import torch
import torch.distributed as dist

from buckets import make_buckets


class SliceSGD:
    """Each rank keeps the momentum of its slice of every bucket."""

    def __init__(self, params, lr, momentum=0.9):
        self.lr = lr
        self.momentum = momentum
        self.world = dist.get_world_size()
        self.buckets = make_buckets(list(params), dist.get_rank(), self.world)
        self.speed = [None] * len(self.buckets)

    def _sum_grads(self, bucket):
        flat = bucket.flat(lambda p: p.grad)
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        return flat

    def _update_slice(self, i, bucket, grad):
        mine = grad[bucket.start : bucket.stop]
        if mine.numel() == 0:
            return None
        if self.speed[i] is None:
            self.speed[i] = torch.zeros_like(mine)
        self.speed[i].mul_(self.momentum).add_(mine)
        return bucket.flat(lambda p: p.data)[bucket.start : bucket.stop] - self.lr * self.speed[i]

    @torch.no_grad()
    def step(self):
        for i, bucket in enumerate(self.buckets):
            grad = self._sum_grads(bucket)
            fresh = self._update_slice(i, bucket, grad)
            if fresh is None:
                continue
            part = grad.new_zeros(bucket.shard)
            part[: fresh.numel()] = fresh
            whole = grad.new_empty(bucket.shard * self.world)
            dist.all_gather_into_tensor(whole, part)
            bucket.scatter_back(whole[: bucket.numel])
