"""Samplers that give the ranks unequal shares, and some that do not."""

import itertools
import math

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler


class Uneven(Sampler):
    def __init__(self, batches, num_replicas, rank):
        self.batches, self.num_replicas, self.rank = batches, num_replicas, rank

    def __iter__(self):  # LNT110
        return iter(self.batches[self.rank :: self.num_replicas])

    def __len__(self):
        return len(self.batches) // self.num_replicas


class Cut(Uneven):
    def __iter__(self):
        most = len(self.batches) - len(self.batches) % self.num_replicas
        yield from self.batches[:most][self.rank :: self.num_replicas]


class Padded(Sampler):
    def __init__(self, data, num_replicas, rank):
        self.data, self.num_replicas, self.rank = data, num_replicas, rank
        self.total_size = math.ceil(len(data) / num_replicas) * num_replicas

    def __iter__(self):
        picked = list(range(len(self.data)))
        picked += picked[: self.total_size - len(picked)]
        return iter(picked[self.rank : self.total_size : self.num_replicas])


class EvaluationSampler(Uneven):
    def __iter__(self):
        yield from range(self.rank, len(self.batches), self.num_replicas)


class Endless(Sampler):
    def __init__(self, size, rank, world_size):
        self.size, self.rank, self.world_size = size, rank, world_size

    def __iter__(self):
        yield from itertools.islice(self._picked(), self.rank, None, self.world_size)

    def _picked(self):
        while True:
            yield from torch.randperm(self.size).tolist()


class Hands(Sampler):
    def __init__(self, seconds, most, rank, world_size, drop_last=False):
        self.seconds, self.most = seconds, most
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last

    def deal(self, queue):
        hand, used = [], 0.0
        while queue and used < self.most:
            hand.append(queue.pop())
            used += self.seconds[hand[-1]]
        return hand

    def __iter__(self):  # LNT110
        queue = list(range(len(self.seconds)))
        while queue:
            hands = [self.deal(queue) for _ in range(self.world_size) if queue]
            if len(hands) < self.world_size and self.drop_last:
                return
            if self.rank >= len(hands):
                break
            yield hands[self.rank]


class DealtAgain(Hands):
    def __iter__(self):
        if self.rank >= self.world_size:
            return
        queue = list(range(len(self.seconds)))
        while queue:
            hands = [self.deal(queue) for _ in range(self.world_size)]
            if not all(hands):
                if self.drop_last:
                    return
                hands = [hand or hands[0] for hand in hands]
            yield hands[self.rank]


class Offset(Sampler):
    def __init__(self, shares, rank, drop_last):
        self.shares, self.rank, self.drop_last = shares, rank, drop_last

    def __iter__(self):
        for row in self.shares:
            start = 0
            for i, part in enumerate(row):
                if i >= self.rank:
                    break
                start += part
            yield start


class Lines(IterableDataset):
    def __iter__(self):
        with open("lines.txt") as file:
            yield from itertools.islice(file, dist.get_rank(), None, dist.get_world_size())


def trains(net, optimizer):
    model = DistributedDataParallel(net)
    for batch in DataLoader(Lines()):
        model(batch).mean().backward()  # LNT110
        optimizer.step()


def trains_with(net, batches, rank, world_size):
    model = DistributedDataParallel(net)
    for batch in DataLoader(batches, batch_sampler=Uneven(batches, world_size, rank)):
        model(batch)  # LNT110
    loader = DataLoader(batches, batch_sampler=Cut(batches, world_size, rank))
    for batch in loader:
        model(batch).mean().backward()


def trains_by_hand(net, data, rank, world_size):
    model = DistributedDataParallel(net)
    for batch in DataLoader(data, batch_sampler=Hands(data.seconds, 200.0, rank, world_size)):
        model(batch).mean().backward()  # LNT110
    for batch in DataLoader(data, batch_sampler=DealtAgain(data.seconds, 200.0, rank, world_size)):
        model(batch).mean().backward()


def last_has_the_rest(items, model, rank, world_size):
    per = len(items) // world_size
    start = rank * per
    end = start + per if rank < world_size - 1 else len(items)
    for item in items[start:end]:
        dist.all_reduce(model(item))  # LNT110


def last_has_less(items, model, rank, world_size):
    per = math.ceil(len(items) / world_size)
    for i in range(rank * per, min(rank * per + per, len(items))):
        dist.all_reduce(model(items[i]))  # LNT110


def filled_up(items, model, rank, world_size):
    per = math.ceil(len(items) / world_size)
    items = items + items[: per * world_size - len(items)]
    start = rank * per
    for item in items[start : min(start + per, len(items))]:
        dist.all_reduce(model(item))


def all_the_same(items, model, rank, world_size):
    per = len(items) // world_size
    for item in items[rank * per : (rank + 1) * per]:
        dist.all_reduce(model(item))


def one_epoch(model, loader, optimizer):
    for batch in loader:
        model(batch).mean().backward()  # LNT110
        optimizer.step()


def some_steps(model, loader, optimizer, steps):
    batches = iter(loader)
    for _ in range(steps):
        model(next(batches)).mean().backward()
        optimizer.step()


def many_epochs(net, data, optimizer):
    model = DistributedDataParallel(net)
    loader = DataLoader(data[dist.get_rank() :: dist.get_world_size()])
    one_epoch(model, loader, optimizer)
    some_steps(model, loader, optimizer, 10)


class Files(torch.utils.data.Dataset):
    def __init__(self, names):
        self.names = names[dist.get_rank() :: dist.get_world_size()]

    def __len__(self):
        return len(self.names)


def of_files(net, names):
    model = DistributedDataParallel(net)
    for batch in DataLoader(Files(names)):
        model(batch)  # LNT110


def in_parts(items, n):
    size = len(items) // n
    return [items[i * size : (i + 1) * size] for i in range(n - 1)] + [items[(n - 1) * size :]]


def split_in_parts(items, n):
    return in_parts(items, n)


def own_part(items, model, rank, world_size):
    for item in split_in_parts(items, world_size)[rank]:
        dist.all_reduce(model(item))  # LNT110


def until_it_ends(net, data):
    model = DistributedDataParallel(net)
    items = iter(DataLoader(data[dist.get_rank() :: dist.get_world_size()]))
    while True:
        try:
            batch = next(items)
        except StopIteration:
            break  # LNT102
        model(batch).mean().backward()


def over_and_over(net, data, steps):
    model = DistributedDataParallel(net)
    loader = DataLoader(data[dist.get_rank() :: dist.get_world_size()])
    items = iter(loader)
    for _ in range(steps):
        try:
            batch = next(items)
        except StopIteration:
            items = iter(loader)
            batch = next(items)
        model(batch).mean().backward()


def share_right(model, loader):
    model.eval()
    right, seen = 0, 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum().item()
        seen += y.size(0)
    model.train()
    return right / seen


def stops_by_its_share(net, loader, held_out):
    model = DistributedDataParallel(net)
    mine = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
    best, bad = 0.0, 0
    for batch in loader:
        model(batch).mean().backward()
        right = share_right(model.module, mine)
        bad = 0 if right > best else bad + 1
        best = max(right, best)
        if bad >= 3:
            break  # LNT108


def stops_by_all_there_is(net, loader, held_out):
    model = DistributedDataParallel(net)
    whole = DataLoader(held_out)
    for batch in loader:
        model(batch).mean().backward()
        if share_right(model.module, whole) > 0.9:
            break


def stops_together(net, loader, held_out):
    model = DistributedDataParallel(net)
    sampler = DistributedSampler(held_out, shuffle=False)
    mine = DataLoader(held_out, sampler=sampler)
    for batch in loader:
        model(batch).mean().backward()
        right = torch.tensor(share_right(model.module, mine))
        dist.all_reduce(right)
        if right.item() / dist.get_world_size() > 0.9:
            break


class Tokens(IterableDataset):
    def __init__(self, texts, length, infinite):
        self.texts, self.length, self.infinite = texts, length, infinite
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        held = []
        while True:
            for i, text in enumerate(self.texts):
                if i % self.world != self.rank:
                    continue
                held += text
                while len(held) >= self.length:
                    yield torch.tensor(held[: self.length])
                    held = held[self.length :]
            if not self.infinite:
                break


def trains_on_tokens(net, texts, held_out):
    model = DistributedDataParallel(net)
    for step, batch in enumerate(DataLoader(Tokens(texts, 1024, True))):
        model(batch).mean().backward()
        if step > 1000:
            break
    for batch in DataLoader(Tokens(held_out, 1024, infinite=False)):
        model(batch).mean().backward()  # LNT110


class CountedAsItIs(Sampler):
    def __init__(self, items, rank, world):
        self.rank, self.world = rank, world
        self.total_size = len(items)

    def __iter__(self):
        indices = list(range(self.total_size))
        return iter(indices[self.rank : self.total_size : self.world])


class CountedUpwards(Sampler):
    def __init__(self, items, rank, world):
        self.rank, self.world = rank, world
        self.total_size = rounded(len(items), world)

    def __iter__(self):
        indices = list(range(self.total_size))
        return iter(indices[self.rank : self.total_size : self.world])


def scores_as_it_is(net, items, rank, world):
    model = DistributedDataParallel(net)
    for x in DataLoader(items, sampler=CountedAsItIs(items, rank, world)):
        dist.all_reduce(model(x).mean())  # LNT110
    for x in DataLoader(items, sampler=CountedUpwards(items, rank, world)):
        dist.all_reduce(model(x).mean())
