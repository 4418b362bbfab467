"""Flags of signals, files of one rank, what is in flight: each rank has its own."""

import os
import signal
import threading

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


class Told:
    def __init__(self):
        self.rank, self.kept = dist.get_rank(), None

    @property
    def count(self):
        if self.kept is None:
            number = torch.tensor(1)
            dist.all_reduce(number)
            self.kept = number.item()
        return self.kept

    def show(self):
        if self.rank == 0:
            print(self.count)  # LNT101

    def show_on_all(self):
        count = self.count
        if self.rank == 0:
            print(count)


over = threading.Event()


def end(*_):
    over.set()


signal.signal(signal.SIGUSR1, end)


def until_it_is_over(x, steps):
    for _ in range(steps):
        dist.all_reduce(x)
        if over.is_set():
            break  # LNT106


begun = threading.Event()


def until_it_has_begun(x, steps):
    for _ in range(steps):
        dist.all_reduce(x)
        if begun.is_set():
            break
