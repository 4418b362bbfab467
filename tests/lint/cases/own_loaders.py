"""What is kept under the number of a loader, where the project gives each rank its share itself: some have nothing of a small set."""

from collections import defaultdict

import lightning as L
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset


class Module(L.LightningModule):
    def __init__(self, net, names):
        super().__init__()
        self.net, self.names = net, names
        self.kept, self.sums = defaultdict(list), {}
        self.scores = {}

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.kept[dataloader_idx].append(self.net(batch).sum())
        self.sums.setdefault(dataloader_idx, []).append(batch.sum())

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        name = self.names[dataloader_idx]
        self.scores[name] = self.net(batch).mean()

    def on_validation_epoch_end(self):
        for index, parts in sorted(self.kept.items()):
            total = torch.stack(parts).sum()
            dist.all_reduce(total)  # LNT110
            self.log(self.names[index], total)
        self.kept.clear()

    def on_validation_end(self):
        kept = dict(self.sums)
        for index in sorted(kept):
            dist.all_reduce(torch.stack(kept[index]))  # LNT110

    def on_test_epoch_end(self):
        report = {name: score for name, score in self.scores.items()}
        self.log_dict(report, rank_zero_only=True)


class Whole(L.LightningModule):
    """Healthy: it goes through all sets."""

    def __init__(self, net, names):
        super().__init__()
        self.net, self.names = net, names
        self.rows = defaultdict(list)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.rows[dataloader_idx].append(self.net(batch).sum())

    def on_validation_epoch_end(self):
        for index in range(len(self.names)):
            total = torch.zeros(1)
            for part in self.rows.get(index, []):
                total += part
            dist.all_reduce(total)


class Data(L.LightningDataModule):
    def __init__(self, sets):
        super().__init__()
        self.sets = sets

    def mine(self, data):
        return Subset(data, range(self.trainer.global_rank, len(data), self.trainer.world_size))

    def val_dataloader(self):
        return [DataLoader(self.mine(data), batch_size=4) for data in self.sets]


def main(net, sets, names):
    trainer = L.Trainer(devices=8, strategy="ddp", use_distributed_sampler=False)
    trainer.fit(Module(net, names), datamodule=Data(sets))
    trainer.fit(Whole(net, names), datamodule=Data(sets))
