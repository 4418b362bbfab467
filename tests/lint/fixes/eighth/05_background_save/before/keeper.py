import json
import pathlib

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict

from background import BackgroundSaver


class Keeper:
    def __init__(self, base, mode="async", keep=3):
        self.base = pathlib.Path(base)
        self.keep = keep
        self.saver = BackgroundSaver(mode)
        self.rank = dist.get_rank()

    def save(self, step, model, optimizer, extra):
        target = self.base / f"step_{step}"
        if self.rank == 0:
            target.mkdir(parents=True, exist_ok=True)
        weights, moments = get_state_dict(model, optimizer)
        self.saver.save({"model": weights, "optim": moments}, str(target))
        if self.rank == 0:
            torch.save(extra, target / "loop.pt")
            (target / "meta.json").write_text(json.dumps({"step": step, "world": dist.get_world_size()}))
        dist.barrier()

    def finish(self):
        self.saver.wait()
        dist.barrier()
