"""A list or a dictionary that one rank alone fills: it goes round, the others do not."""

import os

import torch
import torch.distributed as dist


def names(folder):
    found = []
    if dist.get_rank() == 0:
        found = sorted(os.listdir(folder))
    for name in found:
        print(name)
        dist.barrier()  # LNT110


def tensors(path):
    state = {}
    if dist.get_rank() == 0:
        state = torch.load(path)
    for value in state.values():
        dist.broadcast(value, 0)  # LNT110


def told(folder):
    found = []
    if dist.get_rank() == 0:
        found = sorted(os.listdir(folder))
    box = [found]
    dist.broadcast_object_list(box, 0)
    for name in box[0]:
        print(name)
        dist.barrier()


def told_in_place(folder):
    found = []
    if dist.get_rank() == 0:
        found = sorted(os.listdir(folder))
    dist.broadcast_object_list(found, 0)
    for name in found:
        print(name)
        dist.barrier()


def as_many(world):
    boxes = [None] * world
    if dist.get_rank() == 0:
        boxes = list(range(world))
    for box in boxes:
        print(box)
        dist.barrier()


def on_all(folder):
    found = []
    if os.environ.get("LISTED"):
        found = sorted(os.listdir(folder))
    for name in found:
        print(name)
        dist.barrier()
