import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from transformers import AutoConfig, AutoModelForCausalLM

from mesh_reader import MeshReader, node_local_rank


def copy_from(source):
    def fetch(name, destination):
        if not destination.exists():
            shutil.copyfile(Path(source) / name, destination)

    return fetch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mosaicml/mpt-7b")
    parser.add_argument("--remote", required=True)
    parser.add_argument("--scratch", default="/local/checkpoint")
    parser.add_argument("--shard-degree", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(node_local_rank())
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // args.shard_degree, args.shard_degree), mesh_dim_names=("replicate", "shard"))

    os.makedirs(args.scratch, exist_ok=True)
    shutil.copyfile(Path(args.remote) / ".metadata", Path(args.scratch) / f".metadata.{dist.get_rank()}")
    os.replace(Path(args.scratch) / f".metadata.{dist.get_rank()}", Path(args.scratch) / ".metadata")
    dist.barrier()

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model, trust_remote_code=True))
    model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=node_local_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, storage_reader=MeshReader(args.scratch, mesh, copy_from(args.remote)))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    tokens = torch.randint(0, 1000, (1, 128), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    print(f"rank {dist.get_rank()} resumed, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
