import threading

import torch
import torch.distributed as dist


class PageCache:
    def __init__(self, total_pages, group, fetch):
        self.total_pages = total_pages
        self.group = group
        self.fetch = fetch
        self.held = {}
        self.done = set()

    def free_pages(self):
        return self.total_pages - sum(list(self.held.values()))

    def start_load(self, key, pages):
        def job():
            hit = self.fetch(key, pages)
            self.held[key] = hit
            self.done.add(key)

        threading.Thread(target=job, daemon=True).start()

    def loaded_everywhere(self, keys):
        flags = torch.tensor([int(key in self.done) for key in keys], dtype=torch.int32)
        dist.all_reduce(flags, op=dist.ReduceOp.MIN, group=self.group)
        return dict(zip(keys, map(bool, flags.tolist())))

    def leader_says(self, keys):
        box = [keys]
        dist.broadcast_object_list(box, src=dist.get_global_rank(self.group, 0), group=self.group)
        return box[0]

    def release(self, key):
        self.held.pop(key, None)
        self.done.discard(key)
