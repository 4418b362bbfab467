import torch
import torch.distributed as dist

from block_pool import BlockPool
from transfers import TransferBoard


class PrefillExecutor:
    def __init__(self, model, source, group, blocks=4096):
        self.model = model
        self.source = source
        self.group = group
        self.pool = BlockPool(blocks)
        self.board = TransferBoard(self.pool, group)
        self.pending = []

    def _fitting(self):
        self.pool.reclaim()
        left = self.pool.free
        chosen = []
        for req in self.pending:
            need = self.pool.blocks_for(req.length)
            if need > left:
                break
            left -= need
            chosen.append(req)
        return chosen

    def _agree_count(self, count):
        n = torch.tensor([count], device="cuda")
        dist.all_reduce(n, op=dist.ReduceOp.MIN, group=self.group)
        return int(n.item())

    def _prefill(self, batch):
        for req in batch:
            self.pool.take(req.rid, req.length)
        caches = self.model.prefill([r.tokens for r in batch])
        for req, cache in zip(batch, caches):
            self.board.begin(req.rid, cache, req.peer)
        self.pending = self.pending[len(batch):]

    def step(self):
        self.pending.extend(self.source.poll(self.group))
        fitting = self._fitting()
        if not fitting and self.board.outstanding():
            self.board.settle()
            fitting = self._fitting()
        count = self._agree_count(len(fitting))
        if count:
            self._prefill(fitting[:count])

    def run(self):
        while True:
            self.step()
