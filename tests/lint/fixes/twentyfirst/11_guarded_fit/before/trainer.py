import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger(__name__)


class Trainer:
    def __init__(self, model, loss_fn, optimizer_fn, loader, keeper, device, epochs=10, save_every=500):
        self.model = DistributedDataParallel(model.to(device), device_ids=[device.index])
        self.loss_fn = loss_fn
        self.optimizer = optimizer_fn(self.model.parameters())
        self.loader = loader
        self.keeper = keeper
        self.device = device
        self.epochs = epochs
        self.save_every = save_every
        self.step = self.epoch = 0
        self.listeners = []

    def state(self):
        return {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(),
                "step": self.step, "epoch": self.epoch}

    def call(self, name, *args):
        for listener in self.listeners:
            getattr(listener, name, lambda *a: None)(self, *args)

    def train_epoch(self):
        self.loader.sampler.set_epoch(self.epoch)
        for inputs, targets in self.loader:
            out = self.model(inputs.to(self.device, non_blocking=True))
            loss = self.loss_fn(out, targets.to(self.device, non_blocking=True))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.step += 1
            self.call("on_step", loss.detach())
            if self.step % self.save_every == 0:
                self.keeper.save(self.state(), "step", self.step)

    def fit(self):
        self.call("on_start")
        try:
            while self.epoch < self.epochs:
                self.train_epoch()
                self.epoch += 1
                self.call("on_epoch")
        except Exception:
            log.exception("rank %d: training ended at step %d", dist.get_rank(), self.step)
            self.keeper.save(self.state(), "last", self.step)
            raise
        self.keeper.save(self.state(), "final", self.step)
        self.call("on_end")
