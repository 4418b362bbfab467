import time

import torch.distributed as dist


class TransferBoard:
    def __init__(self, pool, group):
        self.pool = pool
        self.group = group
        self.handles = {}

    def begin(self, rid, cache, peer):
        self.handles[rid] = cache.send_async(peer)
        self.pool.release_when(rid, cache.copied)

    def outstanding(self):
        return len(self.handles)

    def settle(self):
        while True:
            mine = {rid for rid, h in self.handles.items() if h.done()}
            everyone = [None] * dist.get_world_size(self.group)
            dist.all_gather_object(everyone, mine, group=self.group)
            finished = set.intersection(*everyone)
            if finished:
                break
            time.sleep(0.001)
        for rid in finished:
            self.handles.pop(rid)
