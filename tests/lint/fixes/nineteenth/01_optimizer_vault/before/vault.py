import os

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class CheckpointVault:
    def __init__(self, root, every=500, keep=3):
        self.root = root
        self.every = every
        self.keep = keep
        self.saved = []

    def due(self, step):
        return step > 0 and step % self.every == 0

    def write(self, step, model, optimizer):
        if dist.get_rank() == 0:
            os.makedirs(self.root, exist_ok=True)
            if isinstance(optimizer, ZeroRedundancyOptimizer):
                optimizer.consolidate_state_dict(to=0)
            net = model.module if isinstance(model, DistributedDataParallel) else model
            payload = {
                "step": step,
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            path = os.path.join(self.root, f"step_{step:07d}.pt")
            torch.save(payload, path)
            self.saved.append(path)
            while len(self.saved) > self.keep:
                os.remove(self.saved.pop(0))
        dist.barrier()
