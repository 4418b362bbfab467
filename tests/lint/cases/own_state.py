"""Flags of signals, files of one rank, what is in flight: each rank has its own."""

import os
import signal

import torch
import torch.distributed as dist

stop = False


def on_signal(number, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, on_signal)


def until_a_signal(x):
    for _ in range(100):
        dist.all_reduce(x)
        if stop:
            break  # LNT106


def until_all_have_it(x):
    for _ in range(100):
        dist.all_reduce(x)
        flag = torch.tensor(float(stop))
        dist.all_reduce(flag)
        if flag.item():
            break


class Preempted(SystemExit):
    """It ends a process well."""


class Loop:
    def __init__(self, model):
        self.model = model
        self.asked = False
        self.ongoing_writes = {}
        signal.signal(signal.SIGUSR1, self.ask)

    def ask(self, number, frame):
        self.asked = True

    def step(self, x):
        if self.asked:
            raise Preempted  # LNT106
        dist.all_reduce(x)

    def written(self, x):
        if not self.ongoing_writes:
            return  # LNT106
        dist.all_reduce(x)


def prepared(path, rank, x):
    if not os.path.exists(path):
        if rank == 0:
            torch.save(x, path)
        dist.barrier()  # LNT106


def prepared_by_all(path, rank, x):
    if rank == 0 and not os.path.exists(path):
        torch.save(x, path)
    dist.barrier()


def in_turns(path, rank, world):
    if os.path.exists(path):
        for turn in range(world):
            if turn == rank:
                torch.load(path)
            dist.barrier()
