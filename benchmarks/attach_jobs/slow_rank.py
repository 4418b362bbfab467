"""Rank 2 takes a second longer than the others in each step."""

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    while True:
        time.sleep(1.0 if dist.get_rank() == 2 else 0.0)
        dist.all_reduce(torch.ones(4))


main()
