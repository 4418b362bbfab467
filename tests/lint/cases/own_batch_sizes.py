"""Which of several loaders comes next each rank has drawn for itself, and each has batches of its own size."""

import random

from accelerate import Accelerator
from torch.utils.data import DataLoader


class Source:
    def __init__(self, config, items):
        self.batch_size = config["batch_size"]
        self.loader = iter(DataLoader(items, batch_size=self.batch_size))

    def next_rows(self):
        return next(self.loader)


class Plain:
    def __init__(self, size, items):
        self.loader = iter(DataLoader(items, batch_size=size))

    def next_plain(self):
        return next(self.loader)


class Mixed:
    def __init__(self, sources, seed):
        self.sources = sources
        self.own = random.Random(seed)
        self.same = random.Random(1)

    def rows(self):
        source = self.own.choice(self.sources)
        return source.next_rows()

    def rows_of_all(self):
        source = self.same.choice(self.sources)
        return source.next_rows()

    def plain_rows(self):
        source = self.own.choice(self.sources)
        return source.next_plain()


class Trainer:
    def __init__(self, model, configs, items):
        self.accelerator = Accelerator()
        self.model = self.accelerator.prepare(model)
        seed = 3 + self.accelerator.process_index
        self.mixed = Mixed([Source(c, items) for c in configs], seed)

    def step(self):
        rows = self.mixed.rows()
        loss = self.model(rows).mean()
        return self.accelerator.gather(loss.repeat(len(rows)))  # LNT303

    def step_by_words(self):
        rows = self.mixed.rows()
        loss = self.model(rows["x"]).mean()
        return self.average(loss, rows["x"].shape[0])

    def average(self, loss, count):
        return self.accelerator.gather(loss.detach().repeat(count)).mean()  # LNT303

    def step_of_all(self):
        rows = self.mixed.rows_of_all()
        loss = self.model(rows).mean()
        return self.accelerator.gather(loss.repeat(len(rows)))

    def step_of_equal(self):
        rows = self.mixed.plain_rows()
        loss = self.model(rows).mean()
        return self.accelerator.gather(loss.repeat(len(rows)))

    def step_of_one(self):
        rows = self.mixed.rows()
        loss = self.model(rows).mean()
        return self.accelerator.gather(loss.repeat(1))
