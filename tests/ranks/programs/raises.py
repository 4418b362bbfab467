"""Rank 1 fails of an exception. `record`: the entry point is decorated, so that torchrun is told."""

import sys

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("a broken sample")
    dist.barrier()


(record(main) if "record" in sys.argv else main)()
