"""A pool into which a rank gives something back as its own transfers end: how much room there is, and who goes on by that."""

from collections import deque

import torch
import torch.distributed as dist


class BlockPool:
    def __init__(self, count):
        self.free = deque(range(count))

    def needed(self, request):
        return len(request)

    def give(self, request):
        self.free.extend(request.blocks)


class Sender:
    def __init__(self):
        self.under_way = {}

    def release(self, pool):
        for request, handle in list(self.under_way.values()):
            if handle.done():
                pool.give(request)

    def collect(self):
        out = [None] * dist.get_world_size()
        dist.all_gather_object(out, list(self.under_way))
        return out


class Made:
    def __init__(self):
        self.pool = BlockPool(100)
        self.sender = Sender()
        self.waiting = deque()

    def next_one(self):
        if self.waiting and self.pool.needed(self.waiting[0]) <= len(self.pool.free):
            return self.waiting[0]
        return None

    def rounds(self):
        while True:
            self.sender.release(self.pool)
            if self.next_one() is None:
                self.sender.collect()  # LNT106


class Given:
    def __init__(self, pool, sender):
        self.pool, self.sender = pool, sender
        self.waiting = deque()

    def next_one(self):
        if self.waiting and self.pool.needed(self.waiting[0]) <= len(self.pool.free):
            return self.waiting[0]
        return None

    def rounds(self):
        while True:
            self.sender.release(self.pool)
            request = self.next_one()
            if request is None and self.sender.under_way:
                self.sender.collect()  # LNT106


# Healthy.


class Agrees(Given):
    def any_rank(self, flag):
        value = torch.tensor(int(flag))
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value)

    def rounds(self):
        while True:
            self.sender.release(self.pool)
            if self.any_rank(self.next_one() is None):
                self.sender.collect()


class PagePool:
    def __init__(self, count):
        self.pages = deque(range(count))

    def put_back(self, request):
        self.pages.extend(request.pages)


class GivesBackTogether:
    def __init__(self):
        self.pool = PagePool(100)
        self.running = []

    def end(self, request):
        self.pool.put_back(request)

    def rounds(self, sender):
        while True:
            if len(self.pool.pages) < 4:
                dist.barrier()
            for request in self.running:
                self.end(request)
