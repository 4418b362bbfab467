"""How many rows a rank gets in an exchange, the others say."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Experts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.expert = nn.Linear(width, width)

    def forward(self, x, send, recv):
        got = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(got, x, recv, send)
        if got.size(0) > 0:
            got = self.expert(got)
        back = torch.empty_like(x)
        dist.all_to_all_single(back, got, send, recv)
        return back


def trains(batches):
    model = DDP(Experts(8))
    for x, send, recv in batches:
        model(x, send, recv).sum().backward()


def leaves_without_rows(x, send, recv, expert):
    got = x.new_empty(sum(recv), x.shape[1])
    dist.all_to_all_single(got, x, recv, send)
    if got.shape[0] == 0:
        return x  # LNT108
    back = torch.empty_like(x)
    dist.all_to_all_single(back, expert(got), send, recv)
    return back


def skips_without_rows(x, send, recv, expert):
    got = x.new_empty(sum(recv), x.shape[1])
    dist.all_to_all_single(got, x, output_split_sizes=recv, input_split_sizes=send)
    back = torch.empty_like(x)
    if got.numel() > 0:
        dist.all_to_all_single(back, expert(got), send, recv)  # LNT107
    return back


def leaves_by_length(x, send, recv, expert):
    got = x.new_empty(sum(recv), x.shape[1])
    dist.all_to_all_single(got, x, recv, send)
    if not len(got):
        return x  # LNT108
    dist.all_to_all_single(x, expert(got), send, recv)
    return x


def computes_without_rows(x, send, recv, expert):
    got = x.new_empty(sum(recv), x.shape[1])
    dist.all_to_all_single(got, x, recv, send)
    out = expert(got) if got.shape[0] > 0 else got
    back = torch.empty_like(x)
    dist.all_to_all_single(back, out, send, recv)
    return back


def by_columns(x, send, recv, expert):
    got = x.new_empty(sum(recv), x.shape[1])
    dist.all_to_all_single(got, x, recv, send)
    if got.shape[1] > 8:
        dist.barrier()
    return got


def of_equal_parts(x, expert):
    got = torch.empty_like(x)
    dist.all_to_all_single(got, x)
    if got.shape[0] == 0:
        return x
    back = torch.empty_like(x)
    dist.all_to_all_single(back, expert(got))
    return back
