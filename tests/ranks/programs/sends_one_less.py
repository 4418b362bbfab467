"""A parameter server: rank 3 leaves a bad gradient out, and the server waits for as many as each time before."""

import torch
import torch.distributed as dist

PUSHES = 3


def serve(world: int) -> None:
    for worker in range(1, world):
        for _ in range(PUSHES):
            dist.recv(torch.empty(4), worker)
    for worker in range(1, world):
        dist.send(torch.ones(4), worker)


def work(rank: int, step: int) -> None:
    for push in range(PUSHES):
        gradient = torch.full((4,), float("nan") if (rank, step, push) == (3, 6, 1) else 1.0)
        if not torch.isfinite(gradient).all():  # culprit
            continue
        dist.send(gradient, 0)
    dist.recv(torch.empty(4), 0)


def main() -> None:
    dist.init_process_group("gloo")
    for step in range(10):
        if dist.get_rank() == 0:
            serve(dist.get_world_size())
        else:
            work(dist.get_rank(), step)
    dist.barrier()


main()
