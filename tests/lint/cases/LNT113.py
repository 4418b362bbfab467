"""Collectives in the order of a set."""

import glob
import os
from pathlib import Path

import torch
import torch.distributed as dist


def by_name(tensors, names):
    for name in set(names):  # LNT113
        dist.broadcast(tensors[name], src=0)


def sorted_first(tensors, names):
    for name in sorted(set(names)):
        dist.broadcast(tensors[name], src=0)


def in_order(tensors, names):
    for name in dict.fromkeys(names):
        dist.broadcast(tensors[name], src=0)


def of_numbers(tensors, ranks):
    for rank in set(ranks):
        dist.broadcast(tensors[rank], src=rank)


def without_collectives(names):
    for name in set(names):
        print(name)


class Ready:
    def __init__(self):
        self.parameters = set()
        self.kept = []

    def reduce(self, parameters):
        for p in parameters:  # LNT113
            dist.all_reduce(p.grad)

    def finish(self):
        self.reduce(self.parameters)


class InOrder:
    def __init__(self):
        self.kept = []

    def reduce(self, parameters):
        for p in parameters:
            dist.all_reduce(p.grad)

    def finish(self):
        self.reduce(self.kept)


class Outputs:
    def __init__(self, names):
        self.names = set(names)

    def made(self, x):
        return {name: x for name in self.names & set(x)}


def in_the_order_of_a_set(outputs):
    for value in outputs.values():  # LNT113
        dist.all_reduce(value)


def in_the_order_of_words(outputs):
    for name in sorted(outputs):
        dist.all_reduce(outputs[name])


def both(x):
    outputs = Outputs(["energy", "stress"]).made(x)
    in_the_order_of_a_set(outputs)
    in_the_order_of_words(outputs)


def by_kind(grads):
    kinds = {g.dtype for g in grads}
    for kind in kinds:  # LNT113
        dist.all_reduce(flat([g for g in grads if g.dtype == kind]))


def by_kind_from_a_generator(grads):
    for kind in set(g.dtype for g in grads):  # LNT113
        dist.all_reduce(flat([g for g in grads if g.dtype == kind]))


def by_kind_in_order(grads):
    kinds = {g.dtype for g in grads}
    for kind in sorted(kinds, key=str):
        dist.all_reduce(flat([g for g in grads if g.dtype == kind]))


def by_length(grads):
    for length in {g.numel() for g in grads}:
        dist.all_reduce(flat([g for g in grads if g.numel() == length]))


def by_remainder(grads):
    lengths = {len(g) % 4 for g in grads}
    for length in lengths:
        dist.all_reduce(flat([g for g in grads if len(g) % 4 == length]))


def asked_in_a_set(grads):
    kinds = {g.dtype for g in grads}
    for g in grads:
        if g.dtype in kinds:
            dist.all_reduce(g)


def by_device(grads):
    for device in {g.device for g in grads}:
        dist.all_reduce(flat([g for g in grads if g.device == device]))


def by_listing(folder):
    for name in os.listdir(folder):  # LNT113
        dist.broadcast_object_list([name], src=0)


def by_sorted_listing(folder):
    for name in sorted(os.listdir(folder)):
        dist.broadcast_object_list([name], src=0)


def sorted_in_place(pattern):
    names = glob.glob(pattern)
    names.sort()
    for name in names:
        dist.broadcast_object_list([name], src=0)


def counted(folder: Path):
    for _, path in enumerate(folder.glob("*.pt")):  # LNT113
        dist.all_reduce(torch.load(path))


def filled_in_its_order(folder: Path):
    states = {}
    for path in folder.iterdir():
        states[path.name] = torch.load(path)
    for state in states.values():  # LNT113
        dist.all_reduce(state)


def filled_and_sorted(folder: Path):
    states = {}
    for path in folder.iterdir():
        states[path.name] = torch.load(path)
    for name in sorted(states):
        dist.all_reduce(states[name])


def filled_from_a_list(names):
    states = {}
    for name in names:
        states[name] = torch.load(name)
    for state in states.values():
        dist.all_reduce(state)


def the_same_barrier(folder: Path):
    for _ in folder.iterdir():
        dist.barrier()


class Table:
    def __init__(self, path):
        self.path = path

    def state(self):
        dist.all_reduce(self.path)


class Meter:
    def __init__(self, path):
        self.path = path

    def state(self):
        dist.barrier()
        return self.path


KINDS = {"table": Table, "meter": Meter}


class Registry:
    def __init__(self, folder: Path):
        self.parts = {}
        for path in folder.iterdir():
            kind = KINDS.get(path.suffix)
            if kind is not None:
                self.parts[path.name] = kind(path)

    def gather(self):
        for part in self.parts.values():  # LNT113
            part.state()

    def gather_in_order(self):
        for name in sorted(self.parts):
            self.parts[name].state()


LEVELS = {"energy", "stress"}


class Outputs:
    def __init__(self):
        self.active = {"energy", "forces", "stress"}

    def names(self):
        return self.active & LEVELS

    def values(self, raw):
        return {name: raw[name] for name in self.names()}

    def values_in_order(self, raw):
        return {name: raw[name] for name in sorted(self.names())}


def reduce_each(values):
    for name, value in values.items():  # LNT113
        dist.all_reduce(value)


def reduce_in_order(values):
    for name, value in values.items():
        dist.all_reduce(value)


def outputs(raw):
    made = Outputs()
    reduce_each(made.values(raw))
    reduce_in_order(made.values_in_order(raw))


def words_of_a_set(tensors):
    for name in {"energy", "forces"}:  # LNT113
        dist.all_reduce(tensors[name])


def asked_of_a_set(tensors):
    for name in ("energy", "forces"):
        if name in {"energy", "stress"}:
            dist.all_reduce(tensors[name])


def filled_with_lists(tensors):
    buckets = {}
    kinds = {t.type() for t in tensors}
    for kind in kinds:
        buckets[kind] = [t for t in tensors if t.type() == kind]
    for kind in buckets:  # LNT113
        dist.all_reduce(buckets[kind][0])


def flat(tensors, call):
    kinds = {t.type() for t in tensors}
    for kind in kinds:  # LNT113
        call([t for t in tensors if t.type() == kind][0])


def flat_in_order(tensors, call):
    for kind in sorted({t.type() for t in tensors}):
        call([t for t in tensors if t.type() == kind][0])


def flat_without(tensors, call):
    for kind in {t.type() for t in tensors}:
        call([t for t in tensors if t.type() == kind][0])


def gives(tensors):
    flat(tensors, dist.all_reduce)
    flat_in_order(tensors, dist.all_reduce)
    flat_without(tensors, print)


def below(folder):
    paths = []
    for root, _, names in os.walk(folder):
        for name in names:
            paths.append(os.path.join(root, name))
    for path in paths:  # LNT113
        dist.broadcast(torch.load(path), 0)


def below_in_order(folder):
    paths = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            paths.append(os.path.join(root, name))
    for path in paths:
        dist.broadcast(torch.load(path), 0)
