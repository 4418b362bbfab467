import math

import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, params, rank, world):
        self.params = params
        self.numel = sum(p.numel() for p in params)
        self.chunk = math.ceil(self.numel / world)
        self.start = min(rank * self.chunk, self.numel)
        self.end = min(self.start + self.chunk, self.numel)
        device = params[0].device
        self.flat = torch.zeros(self.chunk * world, dtype=params[0].dtype, device=device)
        self.write(self.flat)
        self.master = self.flat[self.start:self.end].float().clone()
        self.exp_avg = torch.zeros_like(self.master)
        self.exp_avg_sq = torch.zeros_like(self.master)

    @property
    def shard_numel(self):
        return self.end - self.start

    def write(self, flat):
        offset = 0
        for p in self.params:
            flat[offset:offset + p.numel()] = p.detach().reshape(-1)
            offset += p.numel()

    def read(self):
        offset = 0
        for p in self.params:
            p.data.copy_(self.flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()

    def shard_grad(self):
        flat = torch.zeros(self.numel, device=self.flat.device)
        offset = 0
        for p in self.params:
            if p.grad is not None:
                flat[offset:offset + p.numel()] = p.grad.reshape(-1).float()
            offset += p.numel()
        dist.all_reduce(flat)
        return flat[self.start:self.end] / dist.get_world_size()


class FlatAdam:
    def __init__(self, groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.buckets = [Bucket(params, rank, world) for params in groups]
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.steps = 0

    def _update(self, bucket, grad):
        b1, b2 = self.betas
        bucket.exp_avg.lerp_(grad, 1 - b1)
        bucket.exp_avg_sq.mul_(b2).addcmul_(grad, grad, value=1 - b2)
        mean = bucket.exp_avg / (1 - b1 ** self.steps)
        root = (bucket.exp_avg_sq / (1 - b2 ** self.steps)).sqrt() + self.eps
        bucket.master.mul_(1 - self.lr * self.weight_decay).addcdiv_(mean, root, value=-self.lr)

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for bucket in self.buckets:
            grad = bucket.shard_grad()
            if bucket.shard_numel == 0:
                continue
            self._update(bucket, grad)
            bucket.flat[bucket.start:bucket.end] = bucket.master.to(bucket.flat.dtype)
        for bucket in self.buckets:
            lo = dist.get_rank() * bucket.chunk
            mine = bucket.flat[lo:lo + bucket.chunk].clone()
            dist.all_gather_into_tensor(bucket.flat, mine)
            bucket.read()

    def zero_grad(self):
        for bucket in self.buckets:
            for p in bucket.params:
                p.grad = None
