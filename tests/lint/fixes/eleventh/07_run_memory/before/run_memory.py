import os

import torch
import torch.distributed as dist


class RunMemory:
    """Progress and random state of the run, one file per rank."""

    def __init__(self, folder, device):
        self.folder = folder
        self.device = device
        self.rank = dist.get_rank()

    def _path(self, tag):
        return os.path.join(self.folder, tag, f"trainer_{self.rank}.pt")

    def store(self, tag, step, epoch):
        os.makedirs(os.path.dirname(self._path(tag)), exist_ok=True)
        torch.save({"step": step, "epoch": epoch, "rng": torch.get_rng_state()}, self._path(tag))
        dist.barrier()

    def recall(self, tag):
        if tag is None:
            return None
        path = self._path(tag)
        if not os.path.exists(path):
            print(f"no trainer state at {path}, resuming the weights only")
            return None
        state = torch.load(path, weights_only=True)
        torch.set_rng_state(state["rng"])
        return state
