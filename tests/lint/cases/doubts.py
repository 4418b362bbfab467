"""What keeps a finding back, and what does not."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)


def preview_without_buffers(x, rank):
    net = Plain().cuda()
    net = DDP(net)
    if rank == 0:
        net(x)


def preview_with_buffers(x, rank):
    net = DDP(Normed().cuda())
    if rank == 0:
        net(x)  # LNT103


def preview_without_broadcast(x, rank):
    net = DDP(Normed().cuda(), broadcast_buffers=False)
    if rank == 0:
        net(x)


def preview_unwrapped(net, x, rank):
    net = DDP(net)
    if rank == 0:
        if hasattr(net, "module"):
            net.module(x)
        else:
            net(x)


class Server:
    def work(self):
        while True:
            order = torch.zeros(1)
            dist.broadcast(order, 0)
            if order.item() == 0:
                return
            dist.all_reduce(order)


def served(rank, ask):
    server = Server()
    if rank == 0:
        ask()
    else:
        server.work()


def orders_are_sent(rank, ask):
    if rank == 0:
        for order in ask():
            dist.broadcast(order, 0)
    else:
        Server().work()


def written_after_they_have_met(path, rank, x):
    if os.path.exists(path):
        return torch.load(path)
    dist.all_reduce(x)
    if rank == 0:
        torch.save(x, path)
    return x


def written_before_they_meet(path, rank, x):
    if not os.path.exists(path):
        if rank == 0:
            torch.save(x, path)
        dist.barrier()  # LNT106


def folder_of_a_file(path, rank, x):
    if path.exists():
        return
    if rank == 0:
        path.parent.mkdir()
    dist.barrier()


def stopped_by_a_file(batches, x):
    for _ in batches:
        dist.all_reduce(x)
        if os.path.exists("stop_file"):
            break
        if os.path.exists(args.stop_file):
            break  # LNT106


def is_sharded(model):
    return hasattr(model, "shards")


def save(models):
    models = [models]
    sharded = any(is_sharded(m) for m in models)
    if sharded:
        dist.barrier()


def save_of_one_rank(model, rank):
    if rank == 0:
        save(model)  # far LNT101


def evaluate(rank, data):
    if rank == 0:
        load(rank, data)


def load(rank, data):
    if rank != 0 and not evaluate:
        dist.barrier()


def load_split(data, split):
    if split == "train":
        dist.barrier()


def one_split_of_the_first_rank(rank, data, splits):
    if rank == 0:
        for split in splits:
            load_split(data, split)  # far LNT101


def train_split_of_the_first_rank(rank, data):
    if rank == 0:
        load_split(data, "train")  # LNT101


def share_that_is_filled_up(blocks, rank, world_size):
    mine = blocks[rank::world_size]
    longest = torch.tensor([len(mine)])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    mine += [None] * (longest.item() - len(mine))
    for _ in mine:
        dist.barrier()


def share_that_is_not(blocks, rank, world_size):
    mine = blocks[rank::world_size]
    for _ in mine:
        dist.barrier()  # LNT110


def asked_by_whether_there_are_others(local_rank):
    if local_rank == -1 or dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        if local_rank != -1:
            dist.barrier()  # LNT101


def table_of_processes(groups):
    if os.getpid() in groups:
        dist.barrier()
