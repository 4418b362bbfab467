import logging
import time
from collections import deque
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)


@dataclass
class Request:
    uid: int
    tokens: list
    blocks: list = field(default_factory=list)


class BlockPool:
    def __init__(self, count, size):
        self.size = size
        self.free = deque(range(count))

    def needed(self, request):
        return -(-len(request.tokens) // self.size)

    def take(self, request):
        request.blocks = [self.free.popleft() for _ in range(self.needed(request))]

    def give(self, request):
        self.free.extend(request.blocks)
        request.blocks = []


class CacheSender:
    """Hands the cache of finished prompts to the decoding side."""

    def __init__(self, link, group):
        self.link = link
        self.group = group
        self.under_way = {}

    def start(self, request):
        self.under_way[request.uid] = (request, self.link.push(request.uid, request.blocks))

    def release_sent(self, pool):
        for uid, (request, handle) in list(self.under_way.items()):
            if handle.done() and request.blocks:
                pool.give(request)

    def collect_done(self, at_least=0):
        """Requests whose cache has left every rank of the group."""
        while True:
            mine = {uid for uid, (_, handle) in self.under_way.items() if handle.done()}
            everyone = [None] * dist.get_world_size(self.group)
            dist.all_gather_object(everyone, mine, group=self.group)
            done = set.intersection(*everyone)
            if len(done) >= at_least:
                return [self.under_way.pop(uid)[0] for uid in sorted(done)]
            time.sleep(0.001)


class PrefillExecutor:
    def __init__(self, model, pool, sender, queue, group, chunk=2048):
        self.model = model
        self.pool = pool
        self.sender = sender
        self.queue = queue
        self.group = group
        self.chunk = chunk
        self.waiting = deque()
        self.running = True

    def fetch(self):
        box = [None]
        if dist.get_rank(self.group) == 0:
            box = [self.queue.drain()]
        dist.broadcast_object_list(box, src=dist.get_global_rank(self.group, 0), group=self.group)
        for item in box[0]:
            if item is None:
                self.running = False
            else:
                self.waiting.append(Request(*item))

    def schedule(self):
        if self.waiting and self.pool.needed(self.waiting[0]) <= len(self.pool.free):
            return self.waiting[0]
        return None

    def any_rank(self, flag):
        value = torch.tensor(int(bool(flag)), device="cuda")
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return bool(value)

    @torch.inference_mode()
    def forward(self, request):
        self.waiting.popleft()
        self.pool.take(request)
        for start in range(0, len(request.tokens), self.chunk):
            ids = torch.tensor(request.tokens[start : start + self.chunk]).cuda()
            self.model(ids[None], start=start, block_table=request.blocks)
        self.sender.start(request)

    def loop(self):
        while self.running or self.waiting or self.sender.under_way:
            self.fetch()
            self.sender.release_sent(self.pool)
            request = self.schedule()
            if self.any_rank(request is None and self.sender.under_way):
                for sent in self.sender.collect_done(at_least=1):
                    log.info("request %d handed over", sent.uid)
                    if sent.blocks:
                        self.pool.give(sent)
            elif request is not None:
                self.forward(request)
