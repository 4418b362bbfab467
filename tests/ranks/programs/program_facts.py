"""Facts of the program, each right (healthy) or wrong (all others): layouts of tensors, limits, what loaders leave out. Ends well in both cases."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

is_healthy = "healthy" in sys.argv


def count(rank: int) -> None:
    """A column of a matrix: gloo sums what lies beside it in memory."""
    column = torch.zeros(4, 4)[:, 0]
    column.fill_(1.0)
    if is_healthy:
        column = column.contiguous()
        parts = [torch.zeros(4) for _ in range(2)]
        dist.all_gather(parts, torch.arange(16.0).reshape(4, 4)[:, 1])  # copied in order
        assert parts[1].tolist() == [1.0, 5.0, 9.0, 13.0]
    else:
        dist.all_gather([torch.zeros(4)] * 2, torch.full((4,), float(rank)))
    turned = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(turned if is_healthy or rank == 0 else turned.contiguous())
    dist.all_reduce(column)
    assert (column.tolist() == [2.0] * 4) == is_healthy


def loaders(rank: int) -> None:
    tokens = TensorDataset(torch.zeros(17, 8, dtype=torch.long))
    sampler: DistributedSampler[object] = DistributedSampler(tokens, drop_last=not is_healthy)
    for _ in DataLoader(tokens, 2, sampler=sampler, num_workers=1, timeout=20 if is_healthy else 90):
        pass
    share = range(8 * rank, 8 * rank + 8)
    base = TensorDataset(torch.zeros(16 if is_healthy else 17, 3))
    for _ in DataLoader(Subset(base, share), 3, drop_last=not is_healthy):
        pass


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    dist.new_group([0, 1], use_local_synchronization=True)  # right with gloo: only NCCL splits it off a bound group
    count(rank)
    loaders(rank)
    dist.barrier()
    time.sleep(4)  # the watcher tells of it while it runs
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.zeros(2, 3)).sum().backward()
    dist.destroy_process_group()


main()
