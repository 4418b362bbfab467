import os
import sys

import torch
import torch.distributed as dist

from course import Course
from run_memory import RunMemory


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    net = torch.nn.Sequential(torch.nn.Linear(128, 32), torch.nn.Tanh(), torch.nn.Linear(32, 128))
    memory = RunMemory(os.environ.get("RUN_DIR", "/local/run"), device)
    Course(net, device, memory, total_steps=10000).run(sys.argv[1] if len(sys.argv) > 1 else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
