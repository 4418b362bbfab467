"""A save, or a barrier, of a rank that has failed, while the others train on."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, path):
    state = model.state_dict()
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def in_a_handler(net, loader):
    model = DDP(net)
    try:
        for batch in loader:
            model(batch).sum().backward()
    except Exception:
        save(model, "last.pt")  # LNT202
        raise
    save(model, "final.pt")


def on_oom(net, loader):
    model = DDP(net)
    try:
        for batch in loader:
            model(batch).sum().backward()
    except torch.cuda.OutOfMemoryError:
        dist.barrier()  # LNT202
        raise SystemExit(1)


class Trainer:
    def __init__(self, net, loader):
        self.model = DDP(net)
        self.loader = loader

    def epoch(self):
        for n, batch in enumerate(self.loader):
            self.model(batch).sum().backward()
            if n % 100 == 0:
                save(self.model, f"step{n}.pt")

    def fit(self):
        try:
            for _ in range(10):
                self.epoch()
        except BaseException:
            save(self.model, "crash.pt")  # LNT202
            raise


def logs_metrics(net, loader):
    accelerator = Accelerator()
    model = accelerator.prepare(net)
    try:
        for batch in loader:
            accelerator.backward(model(batch).sum())
    except RuntimeError as error:
        accelerator.print(error)
        accelerator.wait_for_everyone()  # LNT202
        raise


# Healthy.


def on_interrupt(net, loader):
    model = DDP(net)
    try:
        for batch in loader:
            model(batch).sum().backward()
    except KeyboardInterrupt:
        save(model, "last.pt")
        raise


def by_one_rank_alone(net, loader):
    model = DDP(net)
    try:
        for batch in loader:
            model(batch).sum().backward()
    except Exception:
        torch.save(model.module.state_dict(), f"last-{dist.get_rank()}.pt")
        raise
    save(model, "final.pt")


def answers(loader):
    for batch in loader:
        ok = torch.ones(1)
        try:
            batch.sum()
        except Exception:
            ok.zero_()
        dist.all_reduce(ok)


def answers_in_the_handler(loader, work):
    ok = torch.ones(1)
    try:
        for batch in loader:
            work(batch)
            dist.all_reduce(ok)
    except Exception:
        ok.zero_()
        dist.all_reduce(ok)
        raise


def ends(net, loader):
    model = DDP(net)
    try:
        for batch in loader:
            model(batch).sum().backward()
    except Exception:
        dist.destroy_process_group()
        raise


class Stopped(Exception):
    pass


def all_refuse(net, loader):
    model = DDP(net)
    flag = torch.zeros(1)
    try:
        for batch in loader:
            model(batch).sum().backward()
            dist.all_reduce(flag)
            if flag.item() > 0:
                raise Stopped
    except Stopped:
        save(model, "last.pt")
        raise


def told_to_all(message):
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, message)
    print(out)


def logs_in_the_loop(net, loader):
    model = DDP(net)
    for batch in loader:
        try:
            model(batch).sum().backward()
        except RuntimeError as error:
            told_to_all(str(error))  # LNT202
            raise


def told_in_each_round(net, loader):
    model = DDP(net)
    for batch in loader:
        try:
            model(batch).sum().backward()
        except RuntimeError as error:
            told_to_all(str(error))
            raise
        told_to_all("")
