import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset


def pictures(n):
    return TensorDataset(torch.randn(n, 3, 64, 64), torch.randint(0, 21, (n, 64, 64)))


class RegionData(pl.LightningDataModule):
    sizes = {"street": 500, "indoor": 120, "aerial": 5}

    def __init__(self):
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True

    def mine(self, dataset):
        rank, world = self.trainer.global_rank, self.trainer.world_size
        return Subset(dataset, range(rank, len(dataset), world))

    def train_dataloader(self):
        return DataLoader(Subset(self.mine(pictures(4008)), range(500)), batch_size=4)

    def val_dataloader(self):
        return [DataLoader(self.mine(pictures(n)), batch_size=4) for n in self.sizes.values()]
