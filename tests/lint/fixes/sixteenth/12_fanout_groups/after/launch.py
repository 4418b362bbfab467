import argparse

import torch
import torch.distributed as dist
from torch.distributed import rpc

import engine
from source import Source


def stage_weights(index, layers=4, width=256):
    gen = torch.Generator().manual_seed(index)
    return {f"stage{index}.layer{i}": torch.randn(width, width, generator=gen) for i in range(layers)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainers = dist.new_group(list(range(args.sources)), backend="gloo")
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=3600)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world, rpc_backend_options=options)

    if rank < args.sources:
        source = Source(rank, args.sources, list(range(args.sources, world)), trainers)
        source.connect()
        for _ in range(args.rounds):
            source.push(stage_weights(rank))
        if rank == 0:
            print([rpc.rpc_sync(f"worker{e}", engine.held) for e in source.engines])
    rpc.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
