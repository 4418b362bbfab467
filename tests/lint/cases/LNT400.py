"""Settings."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.distributed_c10d._DEFAULT_PG_TIMEOUT = timedelta(minutes=77)  # LNT401


def late(model, local_rank, x):
    dist.init_process_group("nccl")
    os.environ["NCCL_DEBUG"] = "INFO"  # LNT403
    dist.all_reduce(x)
    torch.cuda.set_device(local_rank)  # LNT405


def early(model, local_rank, x):
    torch.cuda.set_device(local_rank)
    os.environ["NCCL_DEBUG"] = "INFO"
    dist.init_process_group("nccl")
    dist.all_reduce(x)


def hides(rank):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)  # LNT406


def fixed():
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"


def unknown():
    os.environ["NCCL_TIMEOUT"] = "3600"  # LNT404


def twice(model):
    for p in model.parameters():  # LNT409
        dist.broadcast(p.data, src=0)
    return DDP(model)


def by_hand(model):
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    return model


def once(model, x):
    loss = model(x).mean()
    loss.backward(retain_graph=True)  # LNT410


def each_round(model, loader):
    for x in loader:
        loss = model(x).mean()
        loss.backward(retain_graph=True)  # LNT410


def of_several(optimizers, losses):
    for optimizer, loss in zip(optimizers, losses):
        loss.backward(retain_graph=True)
        optimizer.step()


def of_the_caller(loss):
    loss.backward(retain_graph=True)


def two_passes(a, b):
    a.backward(retain_graph=True)
    b.backward()


torch.autograd.set_detect_anomaly(True)  # LNT411


def optional(args):
    torch.autograd.set_detect_anomaly(args.debug)
