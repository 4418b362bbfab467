"""What one rank alone sets through a method, a function that it was given, or an object that others are made with."""

import functools
from dataclasses import dataclass

import torch
import torch.distributed as dist


class Log:
    def __init__(self):
        self.ready = self.full = False
        self.values = {}


def evaluate(model, data, log):
    found = [model(d) for d in data]
    log.full = len(data) > 10
    if dist.get_rank() == 0:
        log.values["accuracy"] = sum(found)
        log.ready = True
    dist.barrier()


def flush(log):
    if log.ready:
        memory = torch.tensor(torch.cuda.max_memory_allocated())
        dist.reduce(memory, 0)
    if log.full:
        dist.barrier()


def run(model, data):
    log = Log()
    evaluate(model, data, log)
    flush(log)  # LNT101


def on_first(what, *args):
    if dist.get_rank() == 0:
        what(*args)
    dist.barrier()


def on_all(what, *args):
    what(*args)
    dist.barrier()


class Stopper:
    def __init__(self):
        self.best, self.stop, self.over = 9e9, False, False

    def check(self, loss):
        if loss < self.best:
            self.best = loss
        else:
            self.stop = True

    def count(self, epoch):
        self.over = epoch > 5

    def fit(self, losses):
        for epoch, loss in enumerate(losses):
            dist.all_reduce(loss)
            on_first(self.check, loss.item())
            on_all(self.count, epoch)
            if self.over:
                break
            if self.stop:
                break  # LNT102


class Direct:
    def __init__(self):
        self.stop = False

    def check(self, loss):
        self.stop = loss > 1

    def fit(self, losses):
        for loss in losses:
            dist.all_reduce(loss)
            if dist.get_rank() == 0:
                self.check(loss.item())
            if self.stop:
                break  # LNT102


@dataclass
class Env:
    me: int
    total: int
    deep: bool = False

    @classmethod
    def detect(cls):
        return cls(dist.get_rank(), total=dist.get_world_size())

    @property
    def leads(self):
        return self.me == 0


def finish(env, t):
    if env.leads:
        dist.all_reduce(t)
    if env.deep:
        dist.barrier()


def main(t):
    finish(Env.detect(), t)  # LNT101


class Config:
    def __init__(self, deep):
        self.number = dist.get_rank()
        self.primary = self.number == 0
        self.deep = deep


class Saver:
    def __init__(self, config):
        self.config = config

    def save(self, t):
        if not self.config.primary:
            return  # LNT102
        dist.all_reduce(t)

    def save_all(self, t):
        if not self.config.deep:
            return
        dist.all_reduce(t)


def saved(t):
    one = Saver(Config(True))
    one.save(t)
    one.save_all(t)


def once(fn):
    @functools.wraps(fn)
    def inner(*args):
        if dist.get_rank() != 0:
            return None
        return fn(*args)

    return inner


@once
def report(t):
    dist.all_reduce(t)  # LNT101
    print(t)


def chosen_by_a_setting(strategy, t):
    if strategy != "sharded" and dist.get_rank() != 0:
        return
    dist.all_reduce(t)


def one_side_gathers(accelerator, model, path):
    if accelerator.is_main_process:
        whole = accelerator.unwrap_model(model)
        whole.save_pretrained(path, state_dict=accelerator.get_state_dict(model))  # LNT105
    else:
        accelerator.wait_for_everyone()


def one_side_does_what_it_is_given(work):
    if dist.get_rank() == 0:
        work()
    else:
        dist.barrier()


def the_other_side_does(work):
    if dist.get_rank() != 0:
        dist.barrier()
    else:
        work()
