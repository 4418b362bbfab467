"""What is there on the first rank alone is given to a function that returns early without it."""

import torch.distributed as dist
import torchmetrics
from torch.utils.tensorboard import SummaryWriter


class Table:
    def __init__(self, path):
        self.path = path

    def add(self, name, value):
        with open(self.path, "a") as file:
            print(name, value, file=file)


class Scores:
    def __init__(self):
        self.hits = torchmetrics.Accuracy(task="binary")

    def log(self, table, step):
        if table is None:
            return  # LNT102
        table.add("hits", self.hits.compute())

    def log_with_writer(self, writer, step):
        if writer is None:
            return  # LNT102
        writer.add_scalar("hits", self.hits.compute(), step)

    def log_together(self, table, step):
        value = self.hits.compute()
        if table is None:
            return
        table.add("hits", value)

    def log_if_wanted(self, report, step):
        if report is None:
            return
        report.add("hits", self.hits.compute())


def main(loader, path):
    dist.init_process_group("nccl", timeout=None)
    table = Table(path) if dist.get_rank() == 0 else None
    writer = SummaryWriter(path) if dist.get_rank() == 0 else None
    report = Table(path) if path else None
    scores = Scores()
    for step, _ in enumerate(loader):
        scores.log(table, step)
        scores.log_with_writer(writer, step)
        scores.log_together(table, step)
        scores.log_if_wanted(report, step)
