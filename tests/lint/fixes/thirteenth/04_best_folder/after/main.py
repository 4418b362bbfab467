import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from keeper import Keeper
from tutor import Tutor


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    keeper = Keeper(Path(sys.argv[1]))
    final = Tutor(torch.nn.Linear(20, 1), keeper, device, rounds=100).learn()
    if dist.get_rank() == 0:
        print(f"best step {keeper.best_step}, final {final:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
