import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from shelf import PieceShelf


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("remote", type=Path)
    parser.add_argument("--local", type=Path, default=Path("/tmp/pieces"))
    parser.add_argument("--pieces", type=int, default=4)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    copies = dist.get_world_size() // args.pieces
    mesh = init_device_mesh("cuda", (copies, args.pieces), mesh_dim_names=("copies", "pieces"))
    args.local.mkdir(parents=True, exist_ok=True)
    mine = PieceShelf(mesh, args.remote, args.local).prepare()
    state = torch.load(mine, map_location="cpu")
    print(f"rank {dist.get_rank()}: {len(state)} entries from {mine.name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
