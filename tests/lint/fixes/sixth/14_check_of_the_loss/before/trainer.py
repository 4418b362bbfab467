import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from optimization import Optimization


class Trainer:
    def __init__(self, module, loader):
        self.module = DistributedDataParallel(module)
        self.optimization = Optimization(self.module.parameters())
        self.loader = loader

    def train_one_epoch(self):
        for batch in self.loader:
            loss = self.module(batch).mean()
            self.optimization.step_weights(loss)
        dist.barrier()
