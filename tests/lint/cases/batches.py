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
            dist.all_reduce(x)  # LNT107


def as_often_as_it_says(loader, x):
    for batch in loader:
        for _ in range(batch["rounds"]):
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


def in_bins(lengths, count):
    bins = [[] for _ in range(count)]
    for n in range(len(lengths)):
        bins[n % count].append(n)
    return [sorted(b) for b in bins if b]


def by_length(batch, most, group=None):
    lengths = batch["mask"].sum(dim=1).tolist()
    count = max(1, -(-int(sum(lengths)) // most))
    if group is not None:
        agreed = torch.tensor([count])
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
        count = int(agreed.item())
    count = min(count, len(lengths))
    return [{k: v[rows] for k, v in batch.items()} for rows in in_bins(lengths, count)]


class Policy:
    def __init__(self, module):
        self.module = module

    def log_probs(self, part):
        return self.module(part["tokens"]).log_softmax(-1)

    def in_parts_of_its_own(self, batch):
        for part in by_length(batch, 1024):
            self.log_probs(part).sum().backward()  # LNT110

    def in_as_many_parts(self, batch, group):
        for part in by_length(batch, 1024, group):
            self.log_probs(part).sum().backward()


def policies(net):
    return Policy(DDP(net))


def packed(batch, most):
    part, parts, total = [], [], 0
    for text in batch["texts"]:
        if total + len(text) > most:
            parts.append(part)
            part, total = [], 0
        part.append(text)
        total += len(text)
    return parts


def in_pairs(batch):
    part, parts = [], []
    for n, text in enumerate(batch["texts"]):
        if n % 2 == 0:
            parts.append(part)
            part = []
        part.append(text)
    return parts


def by_what_fits(net, batch):
    model = DDP(net)
    for part in packed(batch, 1024):
        model(part).sum().backward()  # LNT107


def by_twos(net, batch):
    model = DDP(net)
    for part in in_pairs(batch):
        model(part).sum().backward()
