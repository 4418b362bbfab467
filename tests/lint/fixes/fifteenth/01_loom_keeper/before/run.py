import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from coach import Coach, CoachArgs
from loom import Loom


def batches(device, seed=0):
    gen = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(0, 4096, (8, 257), generator=gen).to(device)


def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
    torch.manual_seed(1)
    model = Loom().to(local).spread(mesh)
    Coach(model, CoachArgs(out=sys.argv[1]), batches(local)).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
