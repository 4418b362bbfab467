"""What a loader gives, and what a rank has computed of it, is the rank's own."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, train_loader):
        self.model = DDP(model)
        self.train_loader = train_loader
        self.outputs = []

    def without_a_token(self):
        for batch in self.train_loader:
            if (batch["labels"] != -100).sum() == 0:
                continue  # LNT107
            self.model(batch).backward()

    def of_another_length(self):
        for batch in self.train_loader:
            if batch["labels"].shape[1] > 512:
                batch = {k: v[:, :512] for k, v in batch.items()}
            if "labels" in batch:
                self.model(batch).backward()

    def without_an_output(self):
        if len(self.outputs) == 0:
            return None  # LNT108
        mean = torch.cat(self.outputs).mean()
        dist.all_reduce(mean)
        return mean

    def the_last_of_them(self):
        if len(self.outputs) > 10:
            self.outputs.pop()
        dist.barrier()


def of_a_part_of_the_model(batch, x, tp_group):
    if batch["mask"].sum() == 0:
        return
    dist.all_reduce(x, group=tp_group)


def of_a_data_group(batch, x, dp_group):
    if batch["mask"].sum() == 0:
        return  # LNT108
    dist.all_reduce(x, group=dp_group)


def as_often_as_the_batch_says(loader, x, most):
    for batch in loader:
        for _ in range(batch["length"].sum().item() // most):
            dist.all_reduce(x)  # LNT115


def as_often_for_all(loader, x, most):
    for batch in loader:
        rounds = torch.tensor(batch["length"].sum().item() // most)
        dist.all_reduce(rounds, op=dist.ReduceOp.MAX)
        for _ in range(rounds.item()):
            dist.all_reduce(x)


def stops_without_peers(model, batches, synced):
    done = False
    while True:
        if synced:
            flag = torch.tensor(float(done))
            dist.all_reduce(flag)
            if flag.item():
                break
        done = model.generate(next(batches)).max() == 0
        if done and not synced:
            break
