"""Groups along the dimensions of the job's grid, and conditions on the number of the rank in one of them."""

import torch
from megatron.core import mpu


def logged(loss):
    if mpu.get_context_parallel_rank() == 0:
        torch.distributed.all_reduce(loss, group=mpu.get_data_parallel_group(with_context_parallel=True))  # LNT101
        torch.distributed.all_reduce(loss, group=mpu.get_data_parallel_group())


def norm(total):
    if mpu.get_tensor_model_parallel_rank() == 0:
        torch.distributed.all_reduce(total, group=mpu.get_model_parallel_group())  # LNT101
        torch.distributed.all_reduce(total, group=mpu.get_data_parallel_group())


def sent(t, tp_rank):
    if tp_rank == 0:
        torch.distributed.broadcast(t, 0, group=mpu.get_tensor_model_parallel_group())
    else:
        torch.distributed.broadcast(t, 0, group=mpu.get_tensor_model_parallel_group())
