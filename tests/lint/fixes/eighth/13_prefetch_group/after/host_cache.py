import queue
import threading

import torch
import torch.distributed as dist


class HostCache:
    def __init__(self, layout, storage, page=64):
        self.layout = layout
        self.storage = storage
        self.page = page
        self.jobs = queue.Queue()
        self.ready = {}
        self.prefetch_group = None
        self.backup_group = None
        if storage is not None:
            self._attach()

    def _attach(self):
        if self.layout.tp > 1:
            mine = self.layout.members()
            for ranks in self.layout.tp_groups:
                prefetch = dist.new_group(ranks, backend="gloo")
                backup = dist.new_group(ranks, backend="gloo")
                if ranks == mine:
                    self.prefetch_group, self.backup_group = prefetch, backup
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            key = self.jobs.get()
            pages = torch.tensor(self.storage.hits(key))
            if self.prefetch_group is not None:
                dist.all_reduce(pages, op=dist.ReduceOp.MIN, group=self.prefetch_group)
            self.ready[key] = int(pages) * self.page
            self.jobs.task_done()

    def prefetch(self, key):
        self.jobs.put(key)

    def backup(self, key, tokens):
        stored = torch.tensor(self.storage.put(key, tokens // self.page))
        if self.backup_group is not None:
            dist.all_reduce(stored, op=dist.ReduceOp.MIN, group=self.backup_group)
        return int(stored)
