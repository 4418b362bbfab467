import torch
import torch.distributed as dist

EDGES = [(0, 1), (1, 2), (0, 2), (2, 3)]


def sources(stage):
    return [a for a, b in EDGES if b == stage]


def targets(stage):
    return [b for a, b in EDGES if a == stage]


class Courier:
    def __init__(self, stage, shape, device):
        self.stage = stage
        self.shape = shape
        self.device = device

    def fetch(self):
        boxes = [torch.empty(self.shape, device=self.device) for _ in sources(self.stage)]
        self._move([dist.P2POp(dist.irecv, box, peer) for box, peer in zip(boxes, sources(self.stage))])
        return boxes

    def deliver(self, out):
        self._move([dist.P2POp(dist.isend, out, peer) for peer in targets(self.stage)])

    def _move(self, ops):
        if not ops:
            return
        works = []
        for peer in sorted({op.peer for op in ops}):
            works += dist.batch_isend_irecv([op for op in ops if op.peer == peer])
        for work in works:
            work.wait()
