"""What this rank's own samples are like says how many batches, or rows, it has."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Sampler


def by_budget(model, data):
    model = DDP(model)
    batches, batch, total = [], [], 0
    for i in DistributedSampler(data):
        if total + data.lengths[i] > 4096:
            batches.append(batch)
            batch, total = [], 0
        batch.append(i)
        total += data.lengths[i]
    for batch in batches:
        model(data.joined(batch)).sum().backward()  # LNT107


def by_number(model, data):
    model = DDP(model)
    batches, batch = [], []
    for i in DistributedSampler(data):
        if len(batch) == 8:
            batches.append(batch)
            batch = []
        batch.append(i)
    for batch in batches:
        model(data.joined(batch)).sum().backward()


def by_budget_of_all(model, data):
    model = DDP(model)
    batches, batch, total = [], [], 0
    for i in DistributedSampler(data):
        if total + data.lengths[i] > 4096:
            batches.append(batch)
            batch, total = [], 0
        batch.append(i)
        total += data.lengths[i]
    least = torch.tensor(len(batches))
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    for batch in batches[: least.item()]:
        model(data.joined(batch)).sum().backward()


class Budgets(Sampler):
    def __init__(self, data, budget):
        self.data, self.budget = data, budget
        self.sampler = DistributedSampler(data)

    def __iter__(self):  # LNT110
        batch, total = [], 0
        for i in self.sampler:
            if batch and total + self.data.lengths[i] > self.budget:
                yield batch
                batch, total = [], 0
            batch.append(i)
            total += self.data.lengths[i]
        yield batch


class Numbers(Budgets):
    def __iter__(self):
        batch = []
        for i in self.sampler:
            if len(batch) == self.budget:
                yield batch
                batch = []
            batch.append(i)


def by_sampler(model, data):
    model = DDP(model)
    for x in DataLoader(data, batch_sampler=Budgets(data, 4096)):
        model(x).sum().backward()  # LNT110


def by_number_of_sampler(model, data):
    model = DDP(model)
    for x in DataLoader(data, batch_sampler=Numbers(data, 8)):
        model(x).sum().backward()


def joins(loader):
    found = []
    for b in loader:
        boxes = b["boxes"]
        found.append(boxes[boxes[:, 4] > 0])
    found = torch.cat(found)
    dist.all_gather([torch.zeros_like(found)] * 4, found)  # LNT303


def joins_as_many(loader):
    found = []
    for b in loader:
        found.append(b["boxes"][:, :4])
    found = torch.cat(found)
    dist.all_gather([torch.zeros_like(found)] * 4, found)


def joins_and_fills(loader, most):
    found = []
    for b in loader:
        boxes = b["boxes"]
        found.append(boxes[boxes[:, 4] > 0])
    found = torch.cat(found)
    found = torch.nn.functional.pad(found, (0, 0, 0, most - len(found)))
    dist.all_gather([torch.zeros_like(found)] * 4, found)
