import argparse
import json
import os

import torch
import torch.distributed as dist

from group_table import GroupTable


def read_trace(folder, rank):
    with open(os.path.join(folder, f"rank{rank}.json")) as f:
        trace = json.load(f)
    groups = {int(g["pg_name"]): g["ranks"] for g in trace["groups"]}
    return groups, trace["ops"]


def play(op, groups):
    group = groups[op["group"]]
    x = torch.ones(op["count"], device="cuda")
    if op["kind"] == "all_reduce":
        dist.all_reduce(x, group=group)
    elif op["kind"] == "all_gather":
        out = x.new_empty(op["count"] * dist.get_world_size(group))
        dist.all_gather_into_tensor(out, x, group=group)
    elif op["kind"] == "reduce_scatter":
        out = x.new_empty(op["count"] // dist.get_world_size(group))
        dist.reduce_scatter_tensor(out, x, group=group)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    args = p.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world)
    listed, ops = read_trace(args.folder, rank)
    groups = GroupTable(store).create(listed)
    for op in ops:
        play(op, groups)
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
