"""A loss that is no number, of what a module makes of the rank's own batch."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)

    def forward(self, x):
        return self.first(x)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = Net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        if torch.isinf(loss) or torch.isnan(loss):
            return None  # LNT108
        count = self.all_gather(torch.ones(1)).sum()
        self.manual_backward(loss / count)
        return loss


class Agreeing(Module):
    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        bad = torch.isinf(loss) | torch.isnan(loss)
        if self.all_gather(bad).any():
            return None
        count = self.all_gather(torch.ones(1)).sum()
        self.manual_backward(loss / count)
        return loss
