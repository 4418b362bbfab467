import random

import torch
import torch.distributed as dist
from accelerate import Accelerator

from dataloader import random_dataloader_iterator


class Trainer:
    def __init__(self, config, model, optimizer, backends):
        self.config = config
        self.accelerator = Accelerator()
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.backends = backends
        self.rng = random.Random(config.seed)
        self.state = {"global_step": 0}

    def prepare_batch(self, raw_batch):
        if raw_batch is False or raw_batch is None:
            return raw_batch
        return {k: v.to(self.accelerator.device) for k, v in raw_batch.items()}

    def _any_rank_reached_epoch_end(self, reached_epoch_end):
        if self.accelerator.num_processes <= 1 or not dist.is_initialized():
            return reached_epoch_end
        flag = torch.tensor(1 if reached_epoch_end else 0, device=self.accelerator.device, dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def train_step(self, batch):
        loss = self.model(**batch)
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self):
        for epoch in range(self.config.num_train_epochs):
            step = 0
            while True:
                step += 1
                raw_batch = random_dataloader_iterator(step, self.backends, self.rng)
                prepared_batch = self.prepare_batch(raw_batch)
                if self._any_rank_reached_epoch_end(prepared_batch is False):
                    break
                if prepared_batch is None:
                    raise ValueError("received no batch")
                loss = self.train_step(prepared_batch)
                self.state["global_step"] += 1
                if self.state["global_step"] % self.config.log_steps == 0:
                    mean = self.accelerator.gather(loss).mean()
                    self.accelerator.print(epoch, mean.item())
            self.accelerator.wait_for_everyone()
