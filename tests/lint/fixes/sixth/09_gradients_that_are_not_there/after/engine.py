import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


class Engine:
    def __init__(self, module, world_size):
        self.module = module
        self.world_size = world_size

    def allreduce_bucket(self, bucket):
        flat = _flatten_dense_tensors(bucket)
        dist.all_reduce(flat)
        flat.div_(self.world_size)
        for old, new in zip(bucket, _unflatten_dense_tensors(flat, bucket)):
            old.copy_(new)

    def buffered_allreduce_fallback(self, elements_per_buffer=500000000):
        bucket, count = [], 0
        for _, param in self.module.named_parameters():
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            bucket.append(param.grad.data)
            count += param.numel()
            if count > elements_per_buffer:
                self.allreduce_bucket(bucket)
                bucket, count = [], 0
        if bucket:
            self.allreduce_bucket(bucket)
