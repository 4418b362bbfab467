import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Brain:
    def __init__(self, model, optimizer, checkpointer, ckpt_interval_minutes=15):
        self.model = DDP(model)
        self.optimizer = optimizer
        self.checkpointer = checkpointer
        self.ckpt_interval_minutes = ckpt_interval_minutes

    def _should_save_intra_epoch_ckpt(self, last_ckpt_time):
        return (time.time() - last_ckpt_time) / 60 >= self.ckpt_interval_minutes

    def fit(self, batches):
        last_ckpt_time = time.time()
        for batch in batches:
            loss = self.model(batch).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self._should_save_intra_epoch_ckpt(last_ckpt_time):
                self.checkpointer.save_and_keep_only()
                last_ckpt_time = time.time()
