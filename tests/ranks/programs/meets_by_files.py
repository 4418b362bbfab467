"""Each rank leaves a file and looks for those of the others; the name has the time in it, and no two ranks make the same."""

import os
import time

import torch
import torch.distributed as dist


def meet(name: str, rank: int, world: int) -> None:
    with open(f"{name}.{rank}", "w"):
        pass
    while len([f for f in os.listdir(".") if f.startswith(name)]) < world:  # culprit
        time.sleep(0.1)  # culprit


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    meet(f"saved-{time.time_ns() + dist.get_rank()}", dist.get_rank(), dist.get_world_size())


main()
