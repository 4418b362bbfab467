import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from module import DefectClassifier


def loader(n):
    x = torch.randn(n, 32)
    y = (x.sum(-1) > 0).float()
    return DataLoader(TensorDataset(x, y), batch_size=16, num_workers=2)


if __name__ == "__main__":
    trainer = pl.Trainer(accelerator="gpu", devices=2, strategy="ddp", max_epochs=2)
    model = DefectClassifier()
    trainer.fit(model, loader(4096))
    trainer.test(model, loader(1024))
