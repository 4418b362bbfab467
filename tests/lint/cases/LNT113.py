"""Collectives in the order of a set."""

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
