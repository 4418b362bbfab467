"""The first and the last stage of a pipeline, asked for by the names of Megatron: all ranks of a smaller group are in one stage."""

import torch
import torch.distributed as dist
from megatron.core import mpu


def tensor_group_if_none(group):
    return mpu.get_tensor_model_parallel_group() if group is None else group


def whitened(values, group=None):
    dist.all_reduce(values, group=group)
    return values / dist.get_world_size(group)


def reduced(values, group=None):
    group = tensor_group_if_none(group)
    dist.all_reduce(values, group=group)
    return values


def reduced_by_all(values, group=None):
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    dist.all_reduce(values, group=group)
    return values


def of_all(values):
    if not mpu.is_pipeline_last_stage():
        return None  # LNT102
    return whitened(values)


def of_its_group(values):
    if not mpu.is_pipeline_last_stage():
        return None
    return whitened(values, mpu.get_data_parallel_group())


def of_a_group_by_default(values):
    if mpu.is_pipeline_first_stage():
        return reduced(values)
    return None


def of_the_group_of_all(values):
    if mpu.is_pipeline_first_stage():
        return reduced_by_all(values)  # LNT101
    return None


class Swin(torch.nn.Module):
    def __init__(self, is_last_stage):
        super().__init__()
        self.is_last_stage = is_last_stage

    def statistics(self, x):
        if self.is_last_stage:
            dist.all_reduce(x)
        return x
