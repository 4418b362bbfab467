import torch
import torch.distributed as dist


def all_ranks_true(flag):
    vote = torch.tensor(int(flag), dtype=torch.int32)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())


def largest(number):
    value = torch.tensor(number, dtype=torch.int64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return int(value.item())
