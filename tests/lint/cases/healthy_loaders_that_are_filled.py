"""Kept under the number of a loader: each rank has something of every set, as samplers fill up their shares."""

from collections import defaultdict

import lightning as L
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Module(L.LightningModule):
    def __init__(self, net, names):
        super().__init__()
        self.net, self.names = net, names
        self.kept = defaultdict(list)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.kept[dataloader_idx].append(self.net(batch).sum())

    def on_validation_epoch_end(self):
        for index, parts in self.kept.items():
            total = torch.stack(parts).sum()
            dist.all_reduce(total)
            self.log(self.names[index], total)


class Data(L.LightningDataModule):
    def __init__(self, sets):
        super().__init__()
        self.sets = sets

    def sampler(self, data):
        return DistributedSampler(data, rank=self.trainer.global_rank, shuffle=False)

    def val_dataloader(self):
        return [DataLoader(data, batch_size=4, sampler=self.sampler(data)) for data in self.sets]


def main(net, sets, names):
    trainer = L.Trainer(devices=8, strategy="ddp", use_distributed_sampler=False)
    trainer.fit(Module(net, names), datamodule=Data(sets))
