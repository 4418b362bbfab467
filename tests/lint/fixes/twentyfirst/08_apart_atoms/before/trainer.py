import logging

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger(__name__)


class Endless:
    def __init__(self, loader):
        self.loader = loader
        self.source = iter(loader)

    def __len__(self):
        return len(self.loader)

    def next(self):
        try:
            return next(self.source)
        except StopIteration:
            self.source = iter(self.loader)
            return next(self.source)


def closest_pair(coord, mask):
    gaps = torch.cdist(coord, coord)
    eye = torch.eye(coord.size(1), dtype=torch.bool, device=coord.device)
    outside = eye | ~mask[:, None, :] | ~mask[:, :, None]
    return gaps.masked_fill(outside, float("inf")).amin()


class PotentialTrainer:
    """Trains one descriptor with a fitting net for each task."""

    def __init__(self, model, loaders, weights, cfg, device):
        self.rank = dist.get_rank()
        self.device = device
        self.cfg = cfg
        self.tasks = sorted(loaders)
        self.weights = np.array([weights[t] for t in self.tasks])
        self.weights = self.weights / self.weights.sum()
        self.batches = {t: Endless(loader) for t, loader in loaders.items()}
        self.random = np.random.RandomState([self.rank, cfg["seed"]])
        self.model = DistributedDataParallel(model.to(device), find_unused_parameters=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg["lr"])
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, cfg["decay"])
        self.tries = {t: max(1, len(self.batches[t])) for t in self.tasks}

    def pick_task(self):
        return self.tasks[self.random.choice(len(self.tasks), p=self.weights)]

    def all_ranks(self, flag):
        value = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MIN)
        return bool(value.item())

    def draw(self, task):
        for _ in range(self.tries[task]):
            batch = {k: v.to(self.device) for k, v in self.batches[task].next().items()}
            gap = closest_pair(batch["coord"], batch["mask"])
            if self.all_ranks(gap >= self.cfg["min_pair"]):
                return batch
        log.warning("rank %d: no frame of %s with a pair distance over %g", self.rank, task,
                    self.cfg["min_pair"])
        return batch

    def loss(self, out, batch):
        energy = (out["energy"] - batch["energy"]).pow(2).mean()
        force = (out["force"] - batch["force"]).pow(2)[batch["mask"]].mean()
        return self.cfg["energy_weight"] * energy + self.cfg["force_weight"] * force

    def run(self):
        for step in range(self.cfg["steps"]):
            task = self.pick_task()
            batch = self.draw(task)
            out = self.model(batch["coord"], batch["types"], batch["mask"], task=task)
            loss = self.loss(out, batch)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            self.schedule.step()
            if step % self.cfg["log_every"] == 0:
                log.info("rank %d step %d %s loss %.5f", self.rank, step, task, loss.item())
            if step and step % self.cfg["save_every"] == 0 and self.rank == 0:
                torch.save(self.model.module.state_dict(), f"model-{step}.pt")
