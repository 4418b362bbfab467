import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from session import Session
from slots import WriteSlots


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    slots = WriteSlots(Path(sys.argv[1]))
    Session(torch.nn.Linear(128, 128), device, slots).run(steps=1000)
    slots.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
