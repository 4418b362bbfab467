"""Items that are parted by the hash of a text: each process has another seed for that."""

import zlib

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def bucket_of(writer, buckets=10):
    return hash(writer) % buckets


def by_hash(net, letters):
    train = [x for x in letters if bucket_of(x.writer) < 8]
    model = DDP(net)
    for x in DataLoader(train, batch_size=4):
        model(x).sum().backward()  # LNT110


def in_a_loop(net, letters):
    train, held_out = [], []
    for x in letters:
        if hash(x.writer) % 10 < 8:
            train.append(x)
        else:
            held_out.append(x)
    model = DDP(net)
    for x in DataLoader(train, batch_size=4):
        model(x).sum().backward()  # LNT110
    return held_out


# Healthy.


def by_sum(net, letters):
    train = [x for x in letters if zlib.crc32(x.writer.encode()) % 10 < 8]
    model = DDP(net)
    for x in DataLoader(train, batch_size=4):
        model(x).sum().backward()


def of_numbers(net, letters):
    train = [x for x in letters if hash(int(x.writer)) % 10 < 8]
    model = DDP(net)
    for x in DataLoader(train, batch_size=4):
        model(x).sum().backward()


def as_a_key(net, letters):
    seen = {hash(x.writer): x for x in letters}
    dist.barrier()
    return DDP(net), seen
