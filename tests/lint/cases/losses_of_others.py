"""What an unknown call makes of a wrapped module has its graph: whoever leaves out the backward leaves out the reduction."""

import torch
import torch.distributed as dist
from criteria import compute_loss
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, criterion):
        self.model = DDP(model)
        self.criterion = criterion
        self.world = dist.get_world_size()

    def epoch(self, loader):
        for batch in loader:
            try:
                loss, size = self.criterion(self.model, batch)
                (loss / size).backward()
            except RuntimeError as error:  # LNT203
                if "out of memory" not in str(error):
                    raise
                torch.cuda.empty_cache()

    def epoch_or_end(self, loader):
        for batch in loader:
            try:
                loss, size = self.criterion(self.model, batch)
                (loss / size).backward()
            except RuntimeError as error:
                if "out of memory" not in str(error) or self.world > 1:
                    raise
                torch.cuda.empty_cache()

    def weigh(self, batch, scaler):
        losses = compute_loss(self.model, batch)
        total = sum(losses.values())
        if dist.get_rank() == 0:
            scaler.scale(total).backward()  # LNT103

    def weigh_inside(self, batch):
        losses = compute_loss(self.model.module, batch)
        if dist.get_rank() == 0:
            losses["main"].backward()

    def prints(self, batch):
        loss = compute_loss(self.model, batch)
        loss.backward()
        if dist.get_rank() == 0:
            print(loss.item())

    def penalty(self, batch):
        loss = compute_loss(self.model, batch)
        loss.backward()
        loss = batch["weights"].sum()
        if dist.get_rank() == 0:
            loss.backward()


def step(batch, model):
    loss = compute_loss(batch, model)
    loss.mean().backward()


def steps(model, loader):
    wrapped = DDP(model)
    for batch in loader:
        try:
            step(batch, wrapped)
        except Exception:  # LNT203
            print("left out")


def steps_alone(model, loader):
    for batch in loader:
        try:
            step(batch, model)
        except Exception:
            print("left out")
