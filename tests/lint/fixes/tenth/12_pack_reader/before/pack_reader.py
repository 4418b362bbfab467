import os

import torch
import torch.distributed as dist

from read_plan import read_plan


class PackReader:
    """Brings one packed file of bytes onto the device of every rank."""

    def __init__(self, path, device, group=None):
        self.path = path
        self.device = device
        self.group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.plan = read_plan()

    def _bytes(self, f, start, count):
        raw = os.pread(f.fileno(), count, start) if self.plan.slices else self._seek(f, start, count)
        out = torch.zeros(count, dtype=torch.uint8)
        if raw:
            out[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        return out.to(self.device)

    def _seek(self, f, start, count):
        f.seek(start)
        return f.read(count)

    def _by_slices(self, f, target):
        per = self.plan.piece // self.world
        step = per * self.world
        for start in range(0, target.numel(), step):
            mine = self._bytes(f, start + self.rank * per, per)
            whole = torch.empty(step, dtype=torch.uint8, device=self.device)
            dist.all_gather_into_tensor(whole, mine, group=self.group)
            stop = min(start + step, target.numel())
            target[start:stop] = whole[: stop - start]

    def _from_first(self, f, target):
        for start in range(0, target.numel(), self.plan.piece):
            view = target[start : start + self.plan.piece]
            if self.rank == 0:
                view.copy_(self._bytes(f, start, view.numel()))
            dist.broadcast(view, src=0, group=self.group)

    def read(self):
        target = torch.empty(os.path.getsize(self.path), dtype=torch.uint8, device=self.device)
        with open(self.path, "rb") as f:
            if self.plan.slices:
                self._by_slices(f, target)
            else:
                self._from_first(f, target)
        return target
