"""Containers and dictionaries that hold what the batches of this rank had."""

import torch
import torch.distributed as dist


class Meter:
    def __init__(self):
        self.hard, self.all = [], []

    def add(self, value):
        self.hard.append(value)

    def keep(self, value):
        self.all.append(value)

    def mean(self):
        if len(self.hard) == 0:
            return 0.0  # LNT108
        t = torch.tensor(sum(self.hard))
        dist.all_reduce(t)
        return t.item()

    def mean_of_all(self):
        if not self.all:
            return 0.0
        t = torch.tensor(sum(self.all))
        dist.all_reduce(t)
        return t.item()


def train(model, loader):
    meter = Meter()
    for batch in loader:
        out = model(batch["x"])
        meter.keep(out.sum().item())
        if batch["is_hard"].any():
            meter.add(out.mean().item())
    return meter.mean(), meter.mean_of_all()


class PerClass:
    def __init__(self):
        self.hits, self.parts = {}, {}

    def update(self, predicted, labels):
        for c in labels.unique().tolist():
            self.hits.setdefault(c, []).append((predicted[labels == c] == c).float().mean())
        for name in ("top1", "top5"):
            self.parts.setdefault(name, []).append(predicted.sum())

    def compute(self):
        for values in self.parts.values():
            dist.all_reduce(torch.stack(values).sum())
        for values in self.hits.values():
            dist.all_reduce(torch.stack(values).mean())  # LNT110


def by_kind(t, kinds):
    return {k.item(): t[kinds == k] for k in kinds.unique()}


class Sums:
    def __init__(self):
        self.sums = {}

    def update(self, blocks):
        for key, block in blocks.items():
            self.sums.setdefault(key, []).append(block.sum())

    def finalize(self):
        for values in self.sums.values():
            dist.all_reduce(torch.stack(values).sum())  # LNT110


def summed(model, loader):
    sums = Sums()
    for kinds, x in loader:
        sums.update(by_kind(model(x), kinds))
    sums.finalize()


def meant(value):
    t = torch.as_tensor(value)
    dist.all_reduce(t)
    return t


def each(metrics):
    return {k: meant(v) for k, v in metrics.items()}  # LNT110


def logged(model, loader):
    for batch in loader:
        metrics = {"loss": model(batch["x"]).item()}
        each(metrics)
        for name in set(batch["source"]):
            metrics[f"loss of {name}"] = 0.0
        each(metrics)


def in_parts(samples, budget):
    out, part, size = [], [], 0
    for s in samples:
        if part and size + len(s) > budget:
            out.append(part)
            part, size = [], 0
        part.append(s)
        size += len(s)
    if part:
        out.append(part)
    return out


def step(model, batch):
    for part in in_parts(batch["input_ids"], 4096):
        loss = model(part).mean()
        dist.all_reduce(loss)  # LNT107


def good_ones(rewards):
    return [i for i, r in enumerate(rewards) if r.std() > 0]


def filtered(model, batch):
    keep = good_ones(batch["rewards"])
    if len(keep) == 0:
        return None  # LNT108
    loss = model(batch["ids"][keep]).mean()
    dist.all_reduce(loss)
    return loss


def in_order(steps, loader, model):
    mine = loader.shard(dist.get_world_size(), dist.get_rank()).filter(len)
    step = 0
    while step < steps:
        for batch in mine:
            dist.all_reduce(model(batch))
            step += 1
    for batch in mine:
        dist.all_reduce(model(batch))  # LNT110
