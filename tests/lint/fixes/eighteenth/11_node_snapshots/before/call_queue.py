from collections import deque
from dataclasses import dataclass, field
from typing import Callable, List

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


@dataclass
class SaveJob:
    fn: Callable
    args: tuple = ()
    afterwards: List[Callable] = field(default_factory=list)


class Worker:
    def __init__(self):
        self.process = None

    def start(self, request):
        ctx = mp.get_context("spawn")
        self.process = ctx.Process(target=request.fn, args=request.args)
        self.process.start()

    def is_done(self, blocking, local_only):
        if blocking:
            self.process.join()
        alive = int(self.process.is_alive())
        if not local_only:
            flag = torch.tensor([alive], dtype=torch.int, device="cuda")
            dist.all_reduce(flag)
            alive = int(flag.item())
        return alive == 0


class SaveQueue:
    def __init__(self):
        self.calls = deque()
        self.index = -1

    def schedule(self, request):
        self.index += 1
        worker = Worker()
        worker.start(request)
        self.calls.append((self.index, worker, request))
        return self.index

    def collect(self, blocking=False, local_only=False):
        finished = []
        while self.calls:
            index, worker, request = self.calls[0]
            if not worker.is_done(blocking, local_only):
                break
            self.calls.popleft()
            for fn in request.afterwards:
                fn()
            seen = torch.tensor([index], dtype=torch.int, device="cuda")
            dist.all_reduce(seen, op=dist.ReduceOp.MAX)
            assert seen.item() == index
            finished.append(index)
        return finished
