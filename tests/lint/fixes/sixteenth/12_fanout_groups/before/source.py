import torch
import torch.distributed as dist
from torch.distributed import rpc

import engine


class Source:
    def __init__(self, index, count, engines, trainers):
        self.index = index
        self.count = count
        self.engines = engines
        self.trainers = trainers
        self.label = f"stage-{index}"
        self.group = None

    def _ask(self, call, *args):
        return [rpc.rpc_async(f"worker{e}", call, args=args) for e in self.engines]

    def connect(self):
        ranks = [self.index, *self.engines]
        answers = self._ask(engine.join, self.label, ranks)
        self.group = engine.open_group(self.label, 0, len(ranks))
        torch.futures.wait_all(answers)
        dist.barrier(group=self.trainers)

    def push(self, weights):
        for turn in range(self.count):
            if turn == self.index:
                for name, value in weights.items():
                    answers = self._ask(engine.take, self.label, name, tuple(value.shape))
                    self.group.broadcast(value, 0).wait()
                    torch.futures.wait_all(answers)
            dist.barrier(group=self.trainers)
