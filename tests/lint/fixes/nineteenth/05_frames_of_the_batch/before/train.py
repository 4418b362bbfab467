import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules import SpeechPretrainModule


def units(n):
    feats = torch.randn(n, 200, 80)
    labels = torch.randint(0, 100, (n, 200))
    mask = torch.rand(n, 200) > 0.6
    return DataLoader(TensorDataset(feats, labels, mask), batch_size=8, drop_last=True)


if __name__ == "__main__":
    trainer = pl.Trainer(devices=8, strategy="ddp", max_epochs=20)
    trainer.fit(SpeechPretrainModule(), units(8192))
