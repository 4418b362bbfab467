import logging

import torch
from vllm.distributed import (
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear

import vulkan_ops

logger = logging.getLogger(__name__)


def make_forward(orig):
    def forward(self, x):
        if not getattr(self, "_vulkan_ready", False):
            return orig(self, x)

        row_reduce = isinstance(self, RowParallelLinear) and self.reduce_results and self.tp_size > 1
        col_gather = isinstance(self, ColumnParallelLinear) and self.gather_output and self.tp_size > 1
        try:
            bias = None if row_reduce or self.skip_bias_add else self.bias
            out = vulkan_ops.linear(x, self.weight, bias)
        except Exception as e:
            logger.warning("vulkan linear failed (%s), falling back", e)
            return orig(self, x)
        if row_reduce:
            out = tensor_model_parallel_all_reduce(out)
            if self.bias is not None and not self.skip_bias_add:
                out = out + self.bias
        if col_gather:
            out = tensor_model_parallel_all_gather(out)
        return out, (self.bias if self.skip_bias_add else None)

    return forward


def install():
    for cls in (ColumnParallelLinear, RowParallelLinear):
        cls.forward = make_forward(cls.forward)


def prepare(model: torch.nn.Module):
    for module in model.modules():
        if isinstance(module, (ColumnParallelLinear, RowParallelLinear)):
            module._vulkan_ready = vulkan_ops.upload(module.weight)
