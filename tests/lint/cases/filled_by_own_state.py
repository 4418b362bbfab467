"""Containers into which a rank puts something where its own memory, disk or clock allows it."""

import os
import shutil
import time

import psutil
import torch
import torch.distributed as dist


class Book:
    def __init__(self, room, group=None):
        self.room, self.group = room, group
        self.open = {}

    def start(self, rid, pages):
        if not pages or len(pages) > self.room:
            return
        self.room -= len(pages)
        self.open[rid] = pages

    def finished(self, rid):
        if rid not in self.open:
            return True  # LNT106
        busy = torch.tensor([len(self.open[rid])])
        dist.all_reduce(busy)
        return not busy.item()


def serve(requests):
    book = Book(os.sysconf("SC_AVPHYS_PAGES") // 1024)
    for rid, pages in requests:
        book.start(rid, pages)
        book.finished(rid)


class Cache:
    def __init__(self, folder):
        self.folder = folder
        self.kept = set()

    def keep(self, name):
        if shutil.disk_usage(self.folder).free > 1 << 30:
            self.kept.add(name)

    def share(self, name, x):
        if name in self.kept:
            dist.broadcast(x, src=0)  # LNT106


def share_all(names, x):
    cache = Cache("/data")
    for name in names:
        cache.keep(name)
        cache.share(name, x)


class Pool:
    def __init__(self):
        self.rows = []

    def put(self, row):
        if psutil.virtual_memory().available < 1 << 30:
            return
        self.rows.append(row)

    def reduce(self):
        for row in self.rows:
            dist.all_reduce(row)  # LNT110


def reduce_all(rows):
    pool = Pool()
    for row in rows:
        pool.put(row)
    pool.reduce()


class Late:
    def __init__(self, limit):
        self.end = time.monotonic() + limit
        self.done = {}

    def note(self, name, x):
        if time.monotonic() > self.end:
            return
        self.done[name] = x

    def merged(self):
        return {name: gathered(x) for name, x in self.done.items()}  # LNT110


def gathered(x):
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, x)
    return out


# Right: agreed on, a setting, or nobody waits for it.


class AgreedBook:
    def __init__(self, room):
        least = torch.tensor([room])
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        self.room = least.item()
        self.open = {}

    def start(self, rid, pages):
        if len(pages) > self.room:
            return
        self.open[rid] = pages

    def finished(self, rid):
        if rid not in self.open:
            return True
        busy = torch.tensor([len(self.open[rid])])
        dist.all_reduce(busy)
        return not busy.item()


class Sized:
    def __init__(self, room):
        self.room, self.open = room, {}

    def start(self, rid, pages):
        if len(pages) > self.room:
            return
        self.open[rid] = pages

    def finished(self, rid):
        if rid not in self.open:
            return True
        busy = torch.tensor([len(self.open[rid])])
        dist.all_reduce(busy)
        return not busy.item()


def serve_rightly(requests, args):
    agreed, sized = AgreedBook(os.sysconf("SC_AVPHYS_PAGES") // 1024), Sized(args.room)
    for rid, pages in requests:
        for book in (agreed, sized):
            book.start(rid, pages)
            book.finished(rid)


class OwnCache:
    def __init__(self, folder):
        self.folder, self.kept = folder, {}

    def get(self, name):
        if name not in self.kept:
            x = torch.load(f"{self.folder}/{name}")
            if psutil.virtual_memory().available > 1 << 30:
                self.kept[name] = x
            return x
        return self.kept[name]

    def all(self, names):
        for name in names:
            dist.all_reduce(self.get(name))


class Timer:
    def __init__(self):
        self.seconds = {}

    def stop(self, name, began):
        self.seconds[name] = time.time() - began

    def merged(self):
        return {name: gathered(s) for name, s in self.seconds.items()}


class Weights:
    """What there is no room for any more is taken out; who has it meets the others in the barrier alone."""

    def __init__(self, room):
        self.room, self.kept = room, {}

    def find(self, name):
        if name in self.kept:
            return self.kept[name]
        return None

    def put(self, name, x):
        self.kept[name] = x
        while len(self.kept) > 1 and psutil.virtual_memory().available < self.room:
            self.kept.pop(next(iter(self.kept)))

    def load(self, name):
        x = self.find(name)
        if x is not None:
            dist.barrier()
            return x  # LNT106
        free = torch.tensor([psutil.virtual_memory().available])
        dist.all_reduce(free, op=dist.ReduceOp.MIN)
        dist.barrier()
        self.put(name, torch.load(name))
        return self.kept.get(name)

    def load_after_all_have_met(self, name):
        free = torch.tensor([psutil.virtual_memory().available])
        dist.all_reduce(free, op=dist.ReduceOp.MIN)
        x = self.kept.get(name)
        if x is not None:
            dist.barrier()
            return x
        dist.barrier()
        return torch.load(name)


class Recent:
    """It keeps as many as it is told: the same ones everywhere."""

    def __init__(self, count):
        self.count, self.kept = count, {}

    def find(self, name):
        if name in self.kept:
            return self.kept[name]
        return None

    def put(self, name, x):
        self.kept[name] = x
        while len(self.kept) > self.count:
            self.kept.pop(next(iter(self.kept)))

    def load(self, name):
        x = self.find(name)
        if x is None:
            x = torch.load(name)
            dist.broadcast(x, src=0)
            self.put(name, x)
        return x
