"""Dictionaries whose keys are words of a batch: each rank has keys of its own."""

from collections import defaultdict

import torch
import torch.distributed as dist


def by_task(model, loader):
    totals, counts = defaultdict(float), defaultdict(int)
    for batch in loader:
        for task, loss in zip(batch["task"], model(batch["x"])):
            totals[task] += loss.item()
            counts[task] += 1
    for task in sorted(totals):
        dist.all_reduce(torch.tensor([totals[task], counts[task]]))  # LNT110


def by_task_of_all(model, loader):
    totals = defaultdict(float)
    for batch in loader:
        for task, loss in zip(batch["task"], model(batch["x"])):
            totals[task] += loss.item()
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, sorted(totals))
    for task in sorted(set().union(*names)):
        dist.all_reduce(torch.tensor([totals.get(task, 0.0)]))


def by_known_task(model, loader, tasks):
    totals = {task: 0.0 for task in tasks}
    for batch in loader:
        for task, loss in zip(batch["task"], model(batch["x"])):
            totals[task] += loss.item()
    for task in sorted(totals):
        dist.all_reduce(torch.tensor([totals[task]]))


def whole(model, loader):
    found = {}
    for batch in loader:
        found.setdefault("loss", []).append(model(batch))
        found[batch["name"]] = 1
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, found)
    return sum(len(part) for part in out)


class Meter:
    def __init__(self):
        self.sums = {}

    def update(self, name, value):
        if name not in self.sums:
            self.sums[name] = torch.zeros(2)
        self.sums[name] += value

    def synchronize(self):
        for value in self.sums.values():
            dist.all_reduce(value)  # LNT110


class Timer:
    def __init__(self):
        self.sums = {}

    def update(self, name, value):
        self.sums[name] = self.sums.get(name, 0) + value

    def synchronize(self):
        for name in self.sums:
            dist.all_reduce(self.sums[name])


def measure(model, loader):
    meter, timer = Meter(), Timer()
    for batch in loader:
        meter.update(batch["dataset"], model(batch))
        timer.update("forward", 1)
    meter.synchronize()
    timer.synchronize()


def sometimes(model, batch):
    logs = {"loss": model(batch)}
    more = {}
    if batch["mask"].any():
        more["masked"] = model(batch)
    for name in logs:
        dist.all_reduce(logs[name])
    for name in more:
        dist.all_reduce(more[name])  # LNT110


def none_at_all(model, loader):
    seen = {}
    for batch in loader:
        seen[batch["name"]] = model(batch)
    if not seen:
        return None  # LNT108
    return dist.all_gather_object([None] * 8, seen)


def reduced_by_key(values):
    for value in values.values():
        dist.all_reduce(value)  # LNT110


def more_on_the_first(x):
    values = {"loss": x}
    if dist.get_rank() == 0:
        values["rate"] = x.clone()
    reduced_by_key(values)


def as_many_on_all(x):
    values = {"loss": x}
    if dist.get_rank() == 0:
        values["rate"] = x.clone()
    else:
        values["rate"] = x * 0
    reduced_by_each_key(values)


def reduced_by_each_key(values):
    for value in values.values():
        dist.all_reduce(value)
