"""Shares out of which items drop that are no good: each rank is left with another number."""

import torch
import torch.distributed as dist
from datasets import load_dataset
from torch.nn.parallel import DistributedDataParallel as DDP


class Readers:
    def __init__(self, path, limit, batch_size, by_length):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.path, self.limit, self.batch_size = path, limit, batch_size
        self.agrees = self.world > 1 and by_length
        self.agrees_among_all = self.world > 1

    def lines(self):
        with open(self.path) as file:
            rows = file.readlines()
        whole = len(rows) // self.world * self.world
        return rows[self.rank : whole : self.world]

    def short(self):
        for line in self.lines():
            tokens = line.split()
            if len(tokens) > self.limit:
                continue
            yield tokens

    def batches_of_short(self):
        batch = []
        for tokens in self.short():
            batch.append(tokens)
            if len(batch) == self.batch_size:
                yield batch
                batch = []


def goes_on(flag):
    agreed = torch.tensor([int(flag)])
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
    return bool(agreed.item())


class ByMode(Readers):
    def __iter__(self):
        batches = self.batches_of_short()
        while True:
            batch = next(batches, None)
            if self.agrees:
                if not goes_on(batch is not None):
                    return
            elif batch is None:
                return
            yield batch


class Always(Readers):
    def __iter__(self):
        batches = self.batches_of_short()
        while True:
            batch = next(batches, None)
            if self.agrees_among_all:
                if not goes_on(batch is not None):
                    break
            elif batch is None:
                break
            yield batch


class Never(Readers):
    def __iter__(self):
        batches = self.batches_of_short()
        while True:
            batch = next(batches, None)
            if batch is None:
                break
            yield batch


class Plainly(Readers):
    def __iter__(self):
        yield from self.batches_of_short()


def trains_by_mode(net, path):
    model = DDP(net)
    for batch in ByMode(path, 512, 8, False):
        model(batch).sum().backward()  # LNT110


def trains_always(net, path):
    model = DDP(net)
    for batch in Always(path, 512, 8, False):
        model(batch).sum().backward()


def trains_never(net, path):
    model = DDP(net)
    for batch in Never(path, 512, 8, False):
        model(batch).sum().backward()  # LNT110


def trains_plainly(net, path):
    model = DDP(net)
    for batch in Plainly(path, 512, 8, False):
        model(batch).sum().backward()  # LNT110


class Kept(Readers):
    """As many of each rank, whether they are short or not."""

    def cut(self):
        for line in self.lines():
            tokens = line.split()
            if len(tokens) > self.limit:
                tokens = tokens[: self.limit]
            yield tokens

    def __iter__(self):
        yield from self.cut()


def trains_on_cut(net, path):
    model = DDP(net)
    for batch in Kept(path, 512, 8, False):
        model(batch).sum().backward()


class FilledUp(Readers):
    """What is left is filled up to what each rank has on the average."""

    def __iter__(self):
        count = self.total // self.world
        done = 0
        for batch in self.batches_of_short():
            if done == count:
                return
            done += 1
            yield batch


def trains_on_filled_up(net, path):
    model = DDP(net)
    for batch in FilledUp(path, 512, 8, False):
        model(batch).sum().backward()


class Again(Readers):
    """It begins anew until it has given as many as it shall."""

    def __iter__(self):
        done = 0
        while done < self.limit:
            for batch in self.batches_of_short():
                if done == self.limit:
                    return
                done += 1
                yield batch


def trains_again(net, path):
    model = DDP(net)
    for batch in Again(path, 512, 8, False):
        model(batch).sum().backward()


class EverySecond(Readers):
    def __iter__(self):
        for i, line in enumerate(self.lines()):
            if i % 2:
                continue
            yield line


def trains_on_every_second(net, path):
    model = DDP(net)
    for batch in EverySecond(path, 512, 8, False):
        model(batch).sum().backward()


def trains_on_filtered_shard(net):
    model = DDP(net)
    rows = load_dataset("text", split="train").shard(dist.get_world_size(), dist.get_rank())
    for row in rows.filter(lambda row: len(row["text"]) > 10):
        model(row).sum().backward()  # LNT110


def trains_on_those_of_all(net):
    model = DDP(net)
    rows = load_dataset("text", split="train").filter(lambda row: len(row["text"]) > 10)
    for row in rows:
        model(row).sum().backward()
