import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Strategy:
    def __init__(self):
        self.local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local)
        dist.init_process_group("nccl")
        self.device = torch.device("cuda", self.local)

    def wrap(self, module):
        return DDP(module.to(self.device), device_ids=[self.local])

    def share(self, value, src=0):
        box = [value]
        dist.broadcast_object_list(box, src=src)
        return box[0]

    def close(self):
        dist.destroy_process_group()


class Engine:
    def __init__(self, root, epochs):
        self.root = root
        self.epochs = epochs
        self.strategy = Strategy()
        self.version = time.strftime("%Y%m%d-%H%M%S")

    @property
    def run_dir(self):
        path = os.path.join(self.root, f"run_{self.version}")
        return self.strategy.share(path)

    def fit(self, task, loader):
        wrapped = self.strategy.wrap(task)
        opt = task.make_optimizer()
        task.on_fit_begin(self)
        for epoch in range(self.epochs):
            for batch in loader:
                batch = [t.to(self.strategy.device) for t in batch]
                opt.zero_grad()
                loss = task.loss(wrapped, batch)
                loss.backward()
                opt.step()
            task.on_epoch_done(epoch, loss.item())
        self.strategy.close()
