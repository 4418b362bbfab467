import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from registry import Registry


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    registry = Registry(Path(os.environ.get("SCRATCH", "/scratch/run")), device)
    state = registry.gather()
    if dist.get_rank() == 0:
        torch.save(state, sys.argv[1])
        print(f"{len(state)} parts saved")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
