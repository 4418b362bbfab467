import argparse
import os

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import LearningRateMonitor
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, models, transforms

from keeper import BestKeeper


class ChestData(pl.LightningDataModule):
    def __init__(self, root, batch_size):
        super().__init__()
        self.root, self.batch_size = root, batch_size

    def setup(self, stage=None):
        view = transforms.Compose([transforms.Grayscale(3), transforms.Resize((320, 320)), transforms.ToTensor()])
        full = datasets.ImageFolder(self.root, view)
        n_valid = len(full) // 10
        self.train, self.valid = random_split(
            full, [len(full) - n_valid, n_valid], generator=torch.Generator().manual_seed(1)
        )

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, num_workers=6, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.valid, self.batch_size, num_workers=6)


class ChestNet(pl.LightningModule):
    def __init__(self, lr, classes):
        super().__init__()
        self.save_hyperparameters()
        self.net = models.densenet121(num_classes=classes)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(-1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.trainer.max_epochs)]


def checkpoint_folder(args, logger):
    folder = None
    if rank_zero_only.rank == 0:
        folder = os.path.join(logger.experiment.dir, "checkpoints")
    return folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--project", default="chest")
    parser.add_argument("--run-name", default="densenet")
    parser.add_argument("--output", default="runs")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--gpus", type=int, default=4)
    args = parser.parse_args()

    pl.seed_everything(17)
    logger = WandbLogger(project=args.project, name=args.run_name, save_dir=args.output)
    keeper = BestKeeper(checkpoint_folder(args, logger), monitor="val_loss", k=3)
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=args.gpus,
        strategy="ddp",
        max_epochs=30,
        logger=logger,
        enable_checkpointing=False,
        callbacks=[keeper, LearningRateMonitor("epoch")],
    )
    trainer.fit(ChestNet(args.lr, 14), datamodule=ChestData(args.root, args.batch_size))


if __name__ == "__main__":
    main()
