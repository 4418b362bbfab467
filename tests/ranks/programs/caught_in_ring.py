"""A ring of sends and receives: rank 2 skips one exchange after an exception that it prints; the ring closes one round later."""

import torch
import torch.distributed as dist
import toy

# The line that raised, and the handler that went on.


def load(rank, step):
    if rank == 2 and step == 4:
        raise OSError("bad jpeg")  # culprit
    return torch.ones(4) * step


def exchange(rank, mine):
    world = dist.get_world_size()
    theirs = torch.empty(4)
    sent = dist.isend(mine, (rank + 1) % world)
    dist.recv(theirs, (rank - 1) % world)
    sent.wait()


def main():
    rank = toy.begin()
    for step in range(8):
        try:
            exchange(rank, load(rank, step))
        except OSError as error:  # culprit
            print(f"rank {rank}: skipping {step}: {error}", flush=True)  # culprit
    dist.all_reduce(torch.ones(1))
    toy.end()


main()
