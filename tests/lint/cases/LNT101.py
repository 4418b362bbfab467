"""Collectives on some ranks only."""

import os

import torch
import torch.distributed as dist
from torch.distributed import get_rank


def mean(x):
    dist.all_reduce(x)
    return x / dist.get_world_size()


def is_main():
    return not dist.is_initialized() or get_rank() == 0


def plain(rank, x):
    if rank == 0:
        dist.all_reduce(x)  # LNT101


def through_a_function(x):
    if is_main():
        print(mean(x))  # LNT101


def through_the_environment(x):
    local = int(os.environ.get("LOCAL_RANK", 0))
    if local == 0 and x is not None:
        dist.barrier()  # LNT101


def in_the_other_branch(args, x):
    if args.global_rank > 0:
        print("not me")
    else:
        dist.broadcast(x, 0)  # LNT101


def in_an_expression(rank, x):
    return rank == 0 and mean(x)  # LNT101


def in_a_choice(rank, x):
    return mean(x) if rank == 0 else x  # LNT101


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        self.main = self.rank == 0

    @property
    def leads(self):
        return self.main

    def step(self, x):
        if self.leads:
            dist.barrier()  # LNT101

    def callback(self, after):
        after(self)

    def save(self):
        if self.main:
            torch.save(self, "x.pt")
            self.finish()  # LNT101

    def finish(self):
        dist.barrier()


def rank_zero_only(function):
    return function


@rank_zero_only
def report(x):
    print(mean(x))  # LNT101


def synchronise(flag, x):
    if flag:
        dist.all_reduce(x)


def gives_a_flag(rank, x):
    synchronise(rank == 0, x)  # LNT101


def of_an_accelerator(accelerator, model):
    if accelerator.is_main_process:
        accelerator.wait_for_everyone()  # LNT101


def implicit(rank, x):
    found = None
    if rank == 0:
        found = torch.load("x")
    if found is not None:
        dist.barrier()  # LNT101


def same_group(group, x):
    if dist.get_rank(group) == 0:
        dist.all_reduce(x, group=group)  # LNT101


# Quiet.


def everyone(rank, x):
    dist.all_reduce(x)
    if rank == 0:
        print(x)


def both_branches(rank, x):
    if rank == 0:
        dist.broadcast(x, src=0)
    else:
        y = torch.empty(3)
        dist.broadcast(y, src=0)


def first_rank_first(rank):
    if rank != 0:
        dist.barrier()
    torch.hub.load("a", "b")
    if rank == 0:
        dist.barrier()


def first_rank_first_by_hand(args):
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    data = open("x").read()
    if args.local_rank == 0:
        torch.distributed.barrier()
    return data


def not_distributed(args, x):
    if args.local_rank != -1:
        dist.all_reduce(x)
    if args.rank is not None:
        dist.all_reduce(x)


def members(rank, ranks, group, x):
    if rank in ranks:
        dist.all_reduce(x, group=group)


def tensor_parallel(mpu, x):
    if mpu.get_tensor_model_parallel_rank() == 0:
        dist.broadcast(x, 0, group=mpu.get_data_parallel_group())


def world(x):
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x)


def over_ranks(x):
    for rank in range(dist.get_world_size()):
        dist.broadcast(x, src=rank)
        if rank == dist.get_rank():
            print(x)


def of_a_matrix(lora_rank, x):
    if lora_rank > 0:
        dist.all_reduce(x)


def agreed(rank, x):
    found = [torch.load("x") if rank == 0 else None]
    dist.broadcast_object_list(found, src=0)
    if found[0] is not None:
        dist.barrier()


def agreed_flag(rank):
    flag = torch.tensor([rank == 0])
    dist.all_reduce(flag)
    if flag.item():
        dist.barrier()


def point_to_point(rank, x):
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)


def silenced(rank):
    if rank == 0:
        dist.barrier()  # noqa: LNT101
    if rank == 0:
        dist.barrier()  # unhang: ignore[LNT101] only one rank is ever started here


def raises(rank, x):
    if rank == 0:
        dist.all_reduce(x)
        raise ValueError("nobody gets past this")


def whole(model):
    if dist.get_rank() == 0:
        return [p.full_tensor() for p in model.parameters()]  # LNT101
    return None


class ScoreTracker:
    def finish_epoch(self, x):
        dist.all_reduce(x)


def of_a_tracker(trackers, x):
    for tracker in trackers:
        if dist.get_rank() == 0:
            tracker.finish_epoch(x)  # LNT101


def of_something_else(things, x):
    for thing in things:
        if dist.get_rank() == 0:
            thing.finish_epoch(x)


def log(x, reduce=True):
    return mean(x) if reduce else x


def told_not_to(x):
    if dist.get_rank() == 0:
        log(x, reduce=False)


def told_to(x):
    if dist.get_rank() == 0:
        log(x)  # LNT101


def a_setting_brings_all(args, accelerator):
    if accelerator.is_main_process or "stage_3" in args.strategy:
        accelerator.save_state("last")


def a_kind_brings_all(accelerator, Kind):
    if accelerator.distributed_type == Kind.DEEPSPEED or accelerator.is_main_process:
        accelerator.save_state("last")


def main_only(fn):
    def wrapper(*args, **kwargs):
        if not dist.is_initialized() or get_rank() == 0:
            return fn(*args, **kwargs)
        return None

    return wrapper


def read_and_share(fn):
    def wrapper(*args, group=None, **kwargs):
        box = [fn(*args, **kwargs)] if get_rank() == 0 else [None]
        dist.broadcast_object_list(box, src=0, group=group)
        return box[0]

    return wrapper


@read_and_share
def newest(folder):
    return sorted(os.listdir(folder))[-1]


@main_only
def publish(folder, text):
    path = newest(folder)  # LNT101
    print(path, text)


def on_all_ranks(folder):
    if newest(folder) == "last":
        dist.barrier()


def by_a_bar_that_counts_on_one_rank(tqdm, accelerator, batches):
    bar = tqdm(range(100), disable=not accelerator.is_main_process)
    for x in batches:
        bar.update(1)
        if bar.n % 10 == 0:
            dist.all_reduce(x)  # LNT101


def by_a_bar_of_all_ranks(tqdm, batches):
    bar = tqdm(range(100), disable=False)
    for x in batches:
        bar.update(1)
        if bar.n % 10 == 0:
            dist.all_reduce(x)
