"""Python's generator has a seed of this rank's own: what it shuffles, and batches that end by that order."""

import random

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def packed(lengths, room):
    order = list(range(len(lengths)))
    random.shuffle(order)
    now, used = [], 0
    for i in order:
        if used + lengths[i] > room:
            yield now
            now, used = [], 0
        now.append(i)
        used += lengths[i]


def packed_alike(lengths, room, seed):
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    now, used = [], 0
    for i in order:
        if used + lengths[i] > room:
            yield now
            now, used = [], 0
        now.append(i)
        used += lengths[i]


def packed_by_numpy(lengths, room):
    full, now, used = [], [], 0
    for i in np.random.permutation(len(lengths)):
        if used + lengths[i] > room:
            full.append(now)
            now, used = [], 0
        now.append(i)
        used += lengths[i]
    return full


def one_by_one(items):
    order = list(range(len(items)))
    random.shuffle(order)
    for i in order:
        yield items[i]


def mixed(items):
    order = list(range(len(items)))
    random.shuffle(order)
    for i, x in zip(order, items):
        if items[i] > 3:
            yield x + items[i]
        else:
            yield x


def mixed_again(items):
    out = []
    order = list(range(len(items)))
    random.shuffle(order)
    for i, x in zip(order, items):
        if items[i] > 3:
            out.append(x + items[i])
            continue
        out.append(x)
    return out


def for_ever(items):
    while True:
        order = list(range(len(items)))
        random.shuffle(order)
        for i in order:
            if items[i] > 3:
                yield items[i]


def main(lengths, net, seed):
    random.seed(seed + dist.get_rank())
    np.random.seed(seed)
    model = DDP(net)
    for batch in packed(lengths, 100):
        model(torch.tensor(batch)).sum().backward()  # LNT110
    for batch in packed_alike(lengths, 100, seed):
        model(torch.tensor(batch)).sum().backward()
    for batch in packed_by_numpy(lengths, 100):
        model(torch.tensor(batch)).sum().backward()
    for batch in one_by_one(lengths):
        model(torch.tensor(batch)).sum().backward()
    for batch in mixed(lengths):
        model(torch.tensor(batch)).sum().backward()
    for batch in mixed_again(lengths):
        model(torch.tensor(batch)).sum().backward()
    for batch in for_ever(lengths):
        model(torch.tensor(batch)).sum().backward()
