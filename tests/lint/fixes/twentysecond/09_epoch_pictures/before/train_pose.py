import argparse

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch.utils.data import DataLoader, Dataset

from callbacks import FigureBoard, FigureFolder, PoseFigure


class Crops(Dataset):
    def __init__(self, path):
        pack = torch.load(path)
        self.images, self.maps = pack["images"], pack["maps"]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "maps": self.maps[i]}


class PoseModule(L.LightningModule):
    def __init__(self, nodes=13, lr=1e-4):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, nodes, 3, padding=1))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.net(batch["image"]), batch["maps"])
        self.log("train_loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--wandb-project")
    args = parser.parse_args()
    dataset = Crops(args.data)
    figure = PoseFigure(dataset)
    loggers = [CSVLogger("logs")]
    if args.wandb_project:
        loggers.append(WandbLogger(project=args.wandb_project))
    trainer = L.Trainer(
        accelerator="gpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=100,
        logger=loggers,
        callbacks=[FigureFolder("figures", figure), FigureBoard(figure), ModelCheckpoint(monitor="train_loss_epoch")],
    )
    trainer.fit(PoseModule(), DataLoader(dataset, batch_size=8, shuffle=True, num_workers=4))


if __name__ == "__main__":
    main()
