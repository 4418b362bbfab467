import time
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

READY = "NCCL_READY"


class WeightSender:
    def __init__(self, comm):
        self.comm = comm

    def send(self, model):
        state = {}
        for name, value in model.state_dict().items():
            state[name] = value.full_tensor() if isinstance(value, DTensor) else value
        if self.comm is not None:
            for name, value in state.items():
                self.comm.broadcast(value.to(torch.bfloat16), src=0)


class WeightBroadcast:
    def __init__(self, world, runs, sender):
        self.world = world
        self.runs = runs
        self.sender = sender

    def _notify(self, step):
        notified = []
        for idx in self.runs.used:
            folder = self.runs.broadcast_dir(idx) / f"step_{step}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "STABLE").touch()
            notified.append((idx, folder))
        return notified

    def _wait_ready(self, notified):
        for _, folder in notified:
            while not (folder / READY).exists():
                time.sleep(0.1)

    @torch.no_grad()
    def broadcast_weights(self, model, step):
        if self.world.is_master:
            notified = self._notify(step)
            self._wait_ready(notified)
        self.sender.send(model)
