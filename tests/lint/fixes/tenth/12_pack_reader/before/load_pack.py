import os
import sys

import torch
import torch.distributed as dist

from pack_reader import PackReader


def fill(model, flat):
    at = 0
    for p in model.parameters():
        size = p.numel() * p.element_size()
        p.data.copy_(flat[at : at + size].view(p.dtype).view_as(p))
        at += size


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(16))).to(device)
    fill(model, PackReader(sys.argv[1], device).read())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
