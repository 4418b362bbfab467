import torch
import torch.distributed as dist
import torch.nn as nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def flat_call(tensors, call, extra=None):
    buckets = {}
    kinds = sorted({t.type() for t in tensors})
    for kind in kinds:
        buckets[kind] = [t for t in tensors if t.type() == kind]
    for kind in buckets:
        bucket = buckets[kind]
        coalesced = _flatten_dense_tensors(bucket)
        if extra is not None:
            call(coalesced, *extra)
        else:
            call(coalesced)
        if call is dist.all_reduce:
            coalesced /= dist.get_world_size()
        for old, new in zip(bucket, _unflatten_dense_tensors(coalesced, bucket)):
            old.copy_(new)


class FlatDataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.pending = False
        flat_call([p.data for p in module.parameters()], dist.broadcast, (0,))

        def reduce_all():
            if not self.pending:
                return
            self.pending = False
            grads = [p.grad.data for p in self.module.parameters() if p.requires_grad]
            flat_call(grads, dist.all_reduce)

        def hook(*unused):
            torch.autograd.Variable._execution_engine.queue_callback(reduce_all)

        for param in module.parameters():
            if param.requires_grad:
                param.register_hook(hook)

    def forward(self, *inputs, **kwargs):
        self.pending = True
        return self.module(*inputs, **kwargs)
