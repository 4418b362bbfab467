import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


def frames(count, atoms=9, seed=0):
    gen = torch.Generator().manual_seed(seed)
    coords = torch.randn(count, atoms, 3, generator=gen)
    energy = coords.pow(2).sum(dim=(1, 2)).sqrt()
    return TensorDataset(coords, energy)


class Molecules(L.LightningDataModule):
    def __init__(self, batch=64):
        super().__init__()
        self.batch = batch

    def setup(self, stage=None):
        self.train_set = frames(8192)
        self.val_set = frames(1024, seed=1)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch, shuffle=True, num_workers=2)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch, num_workers=2)
