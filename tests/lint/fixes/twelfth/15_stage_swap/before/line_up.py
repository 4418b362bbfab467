import os

import torch
import torch.distributed as dist

from alternate import Alternate
from link import Link

ROWS, WIDTH = 4096, 4096


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    stage = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()).to(device)
    optim = torch.optim.SGD(stage.parameters(), lr=0.01)
    schedule = Alternate(stage, Link((ROWS, WIDTH), device))
    dist.barrier()
    for step in range(100):
        torch.manual_seed(step)
        batches = [torch.randn(ROWS, WIDTH, device=device) for _ in range(8)]
        optim.zero_grad()
        schedule.run(batches)
        optim.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
