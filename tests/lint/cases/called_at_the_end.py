"""A script whose last lines call `main`; what is asked of one process; a flag of the same name as a property; a cut by arithmetic; a word beside the time."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from pytorch_lightning import Trainer
from torch.nn.parallel import DistributedDataParallel as DDP


def reduce_tensor(tensor, world_size):
    whole = tensor.clone()
    dist.all_reduce(whole)
    return whole / world_size


def validate(model, batch, best):
    began = time.time()
    loss = model(batch).mean()
    dist.all_reduce(loss)
    told = {"loss": loss.item(), "per_second": 1 / (time.time() - began)}
    if told["loss"] < best:
        dist.barrier()
    if time.time() - began > 60:
        dist.barrier()  # LNT106


def evaluate(args, model, batch):
    if args.local_rank in [-1, 0]:
        if args.local_rank == -1 and args.evaluate:
            model(batch)
        if args.evaluate:
            model(batch)  # LNT103


def trains(args, net, rows, world, rank):
    model = DDP(net)
    is_parallel = int(os.environ.get("WORLD_SIZE", 1)) > 1
    for batch in rows[: len(rows) // world * world][rank::world]:
        loss = model(batch).mean()
        reduced = reduce_tensor(loss, world) if is_parallel else loss
        if is_parallel:
            shown = reduce_tensor(loss, world)
        else:
            shown = loss
        if torch.isnan(shown).any() or torch.isnan(reduced).any():
            continue
        loss.backward()
        other = model(batch).mean()
        if torch.isnan(other).any():
            continue  # LNT107
        dist.barrier()
    evaluate(args, model, rows[0])
    validate(model, rows[0], 1.0)


def loads(path, model):
    if dist.get_rank() == 0:
        dist_cp.load_state_dict(model, path, no_dist=True)
        dist_cp.load_state_dict(model, path)  # LNT101


def tests(trainer, model):
    if trainer.is_global_zero:
        trainer = Trainer(devices=1)
        trainer.test(model)


def tests_with_all(trainer, model):
    if trainer.is_global_zero:
        trainer.test(model)  # LNT101


def main():
    args = argparse.Namespace(local_rank=int(os.environ["LOCAL_RANK"]), evaluate=True)
    dist.init_process_group("gloo")
    trains(args, torch.nn.Linear(1, 1), torch.rand(8, 1), dist.get_world_size(), dist.get_rank())


if __name__ == "__main__":
    main()
