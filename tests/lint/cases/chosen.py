"""One of several classes or functions, what is kept in a table, and objects that make collectives as they are gone through."""

import contextlib

import torch
import torch.distributed as dist


class Plain:
    def __init__(self, model):
        self.model = model

    def save(self, path):
        torch.save(self.model.state_dict(), path)


class Sharded(Plain):
    def save(self, path):
        torch.save({k: v.full_tensor() for k, v in self.model.state_dict().items()}, path)


def saver(kind, model):
    if kind == "sharded":
        return Sharded(model)
    return Plain(model)


def save(kind, model):
    one = saver(kind, model)
    if dist.get_rank() == 0:
        one.save("model.pt")  # LNT101
    Plain(model).save("all.pt")


def gathered(t):
    out = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(out, t)
    return out


def alone(t):
    return [t]


WAYS = {"gather": gathered, "none": alone}


def shown(t):
    if dist.get_rank() == 0:
        WAYS["gather"](t)  # LNT101
        WAYS["none"](t)


class Feed:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for batch in self.loader:
            dist.broadcast(batch, 0)
            yield batch


def first(loader, plain):
    feed = Feed(loader)
    if dist.get_rank() == 0:
        print(next(iter(feed)))  # LNT101
        print(next(iter(plain)))
    for batch in feed:
        print(batch)


class Track:
    def __init__(self):
        self.total = 0.0

    @property
    def average(self):
        t = torch.tensor(self.total)
        dist.all_reduce(t)
        return t.item()


def logged(track, other):
    if dist.get_rank() == 0:
        print(track.average)  # LNT101
        print(other.average)


def suppressed(model, loader):
    for batch in loader:
        with contextlib.suppress(RuntimeError):  # LNT203
            out = model(batch)
            dist.all_reduce(out)
        with contextlib.suppress(KeyError):
            del batch["text"]


class Evaluator:
    def run(self, t):
        dist.all_reduce(t)


class Trainer:
    def __init__(self, evaluator, logger):
        self.evaluator, self.logger = evaluator, logger

    def train(self, t):
        if dist.get_rank() == 0:
            self.evaluator.run(t)  # LNT101
            self.logger.run(t)
