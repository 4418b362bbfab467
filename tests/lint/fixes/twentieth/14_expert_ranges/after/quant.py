"""Fake quantisation with a calibrated range."""
import torch
import torch.distributed as dist
from torch import nn


class RangeQuantizer(nn.Module):
    def __init__(self, bits=8):
        super().__init__()
        self.top = 2 ** (bits - 1) - 1
        self.calibrating = False
        self.amax = None

    def forward(self, x):
        if self.calibrating:
            high = x.detach().abs().amax().float()
            self.amax = high if self.amax is None else torch.maximum(self.amax, high)
            return x
        if self.amax is None:
            return x
        scale = (self.amax / self.top).clamp(min=1e-8).to(x.dtype)
        return torch.clamp(torch.round(x / scale), -self.top, self.top) * scale

    def sync_amax(self, group):
        if self.amax is not None:
            dist.all_reduce(self.amax, op=dist.ReduceOp.MAX, group=group)


class QuantLinear(nn.Linear):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.input_quantizer = RangeQuantizer()
        self.weight_quantizer = RangeQuantizer()

    def forward(self, x):
        return nn.functional.linear(self.input_quantizer(x), self.weight_quantizer(self.weight), self.bias)
