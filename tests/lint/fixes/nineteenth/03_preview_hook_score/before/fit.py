import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader, TensorDataset

from avatar import AvatarModule


def frames(n):
    full = torch.rand(n, 3, 64, 64)
    return DataLoader(TensorDataset(full * 0.5, full), batch_size=8)


if __name__ == "__main__":
    trainer = pl.Trainer(
        devices=4, strategy="ddp", max_epochs=10, logger=TensorBoardLogger("runs")
    )
    trainer.fit(AvatarModule(), frames(2048), frames(256))
