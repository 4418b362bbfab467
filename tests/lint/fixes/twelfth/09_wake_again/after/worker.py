import queue

import torch
import torch.distributed as dist


class Worker:
    """Data-parallel worker: asleep until resumed, then started by the first wave."""

    def __init__(self, net, line):
        self.net = net
        self.line = line
        self.paused = True
        self.running = False
        self.leaving = False
        self.todo = []

    def resume(self):
        if not self.paused:
            return
        dist.barrier()
        self.paused = False

    def submit(self, rows):
        self.todo.append(rows)

    def leave(self):
        self.leaving = True

    def _take_wave(self):
        try:
            self.line.waves.get_nowait()
        except queue.Empty:
            return
        if not self.paused:
            self.running = True

    def _take_order(self):
        try:
            name, args = self.line.orders.get(timeout=0.01)
        except queue.Empty:
            return
        getattr(self, name)(*args)
        self.line.replies.put(name)

    def _step(self):
        rows = self.todo.pop(0) if self.todo else torch.zeros(1, 64)
        part = self.net(rows).mean(0)
        dist.all_reduce(part)
        stay = torch.tensor([int(not self.leaving or bool(self.todo))])
        dist.all_reduce(stay, op=dist.ReduceOp.MAX)
        return bool(stay.item())

    def loop(self):
        alive = True
        while alive:
            self._take_wave()
            self._take_order()
            if self.running:
                alive = self._step()
