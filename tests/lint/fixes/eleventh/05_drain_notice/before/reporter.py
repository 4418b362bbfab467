import os

import torch
import torch.distributed as dist


class Reporter:
    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    def report(self, metrics, model=None):
        name = f"report_{self.count:05d}"
        self.count += 1
        if model is not None and dist.get_rank() == 0:
            os.makedirs(self.folder, exist_ok=True)
            torch.save(model.state_dict(), os.path.join(self.folder, name + ".pt"))
        dist.barrier()
        if dist.get_rank() == 0:
            print(name, metrics)
