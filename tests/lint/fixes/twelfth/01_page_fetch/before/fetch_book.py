import threading

import torch
import torch.distributed as dist


class Fetch:
    def __init__(self, pages, read):
        self.rows = [None] * len(pages)
        self.thread = threading.Thread(target=self._run, args=(pages, read), daemon=True)
        self.thread.start()

    def _run(self, pages, read):
        for i, page in enumerate(pages):
            self.rows[i] = read(page)

    def ready(self):
        return not self.thread.is_alive()


class FetchBook:
    """Pages of waiting requests that are read from the slow tier into host memory."""

    def __init__(self, read, host_rows, group):
        self.read = read
        self.room = host_rows
        self.group = group
        self.open = {}
        self.loaded = {}

    def start(self, rid, pages):
        if not pages or len(pages) > self.room:
            return
        self.room -= len(pages)
        self.open[rid] = Fetch(pages, self.read)

    def finished(self, rid):
        if rid not in self.open:
            return True
        busy = torch.tensor([int(not self.open[rid].ready())])
        dist.all_reduce(busy, op=dist.ReduceOp.MAX, group=self.group)
        if busy.item():
            return False
        self.loaded[rid] = self.open.pop(rid).rows
        return True

    def release(self, rid):
        rows = self.loaded.pop(rid, None)
        if rows is not None:
            self.room += len(rows)
