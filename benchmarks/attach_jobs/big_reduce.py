"""All ranks are in the same long all_reduce, one after the other, and each completes."""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    tensor = torch.ones(100_000_000)
    while True:
        dist.all_reduce(tensor)


main()
