"""What is set after an early return is set where the opposite of its condition holds; what an object is made with is known in its methods."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = float("inf")
        self.counter = 0
        self.early_stop = False

    def __call__(self, val_loss):
        if val_loss < self.best:
            self.best = val_loss
            self.counter = 0
            return
        self.counter += 1
        if self.counter >= self.patience:
            self.early_stop = True


def stops_by_its_own_loss(net, loader):
    model, stopper = DDP(net), EarlyStopping(3)
    for _ in range(9):
        for x, y in loader:
            loss = (model(x) - y).sum()
            loss.backward()
        stopper(loss.item())
        if stopper.early_stop:
            break  # LNT108


def stops_by_what_all_agree_on(net, loader):
    model, stopper = DDP(net), EarlyStopping(3)
    for _ in range(9):
        for x, y in loader:
            loss = (model(x) - y).sum()
            loss.backward()
        shown = loss.detach()
        dist.all_reduce(shown)
        stopper(shown.item())
        if stopper.early_stop:
            break


class Writer:
    def __init__(self, writes):
        self.writes = writes

    def norms(self, model):
        return {name: p.grad.norm().full_tensor().item() for name, p in model.named_parameters()}

    def record(self, model):
        if not self.writes:
            return  # LNT102
        print(self.norms(model))


class Reporter:
    def __init__(self, reports):
        self.reports = reports

    def record(self, model):
        if not self.reports:
            return
        print(model.weight.grad.norm().full_tensor())


class Everybody:
    def record(self, model):
        norm = model.weight.grad.norm().full_tensor()
        if dist.get_rank() == 0:
            print(norm)


class Cutter:
    def __init__(self, cuts):
        self.cuts = cuts

    def record(self, part, mesh):
        if not self.cuts:
            return None
        return DTensor.from_local(part, mesh, [Replicate()]).redistribute(mesh, [Shard(0)])  # nobody is asked


def trains_sharded(net, loader, verbose):
    fully_shard(net)
    writer, everybody = Writer(dist.get_rank() == 0), Everybody()
    reporter = Reporter(dist.get_rank() == 0) if verbose else Reporter(True)  # which one it is, nobody knows
    cutter = Cutter(dist.get_rank() == 0)
    for x in loader:
        net(x).sum().backward()
        cutter.record(x, None)
        writer.record(net)
        reporter.record(net)
        everybody.record(net)


def writes_on(model, prompts, generator):
    alive = torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(40):
        logits = model(prompts)[:, -1]
        new = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        alive &= new[:, 0] != 0
        if not alive.any():
            break  # LNT108
    return alive


def writes_on_together(model, prompts, generator):
    alive = torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(40):
        logits = model(prompts)[:, -1]
        new = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        alive &= new[:, 0] != 0
        left = alive.sum()
        dist.all_reduce(left)
        if left == 0:
            break
    return alive


def scores(model, rows, limit):
    for row in rows:
        shown = limit.clamp(0)
        model(row)
        if shown.item() > 3:  # it is not what the module gave
            break


def generates(net, prompts):
    fully_shard(net)
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    writes_on(net, prompts, generator)
    writes_on_together(net, prompts, generator)
    scores(net, prompts, torch.ones(1))
