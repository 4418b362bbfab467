import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

from dock_module import DockModule


class Complexes(Dataset):
    def __init__(self, count):
        self.sizes = torch.randint(50, 6000, (count,)).tolist()

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        n = self.sizes[i]
        return torch.randn(n, 16), torch.rand(n, n)


def main():
    pl.seed_everything(1)
    trainer = pl.Trainer(accelerator="gpu", devices=4, strategy="ddp", max_epochs=20)
    loader = DataLoader(Complexes(4000), batch_size=None, shuffle=True, num_workers=4)
    trainer.fit(DockModule(), loader)


if __name__ == "__main__":
    main()
