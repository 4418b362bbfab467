"""Loaders without a sampler in a DDP training; processes that are forked beside it."""

import multiprocessing

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def make(model, items):
    DDP(model)
    DataLoader(items, shuffle=True)  # LNT302
    DataLoader(items, shuffle=True, drop_last=True)
    DataLoader(items, sampler=DistributedSampler(items))
    DataLoader(items)
    multiprocessing.set_start_method("fork")  # LNT412
    multiprocessing.get_context("spawn")
