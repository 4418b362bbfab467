from argparse import ArgumentParser

import pytorch_lightning as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader

from mri_data import KneeSlices, WholeVolumes
from unet import Unet, UnetTransform


class KneeModule(pl.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.save_hyperparameters(args)
        self.args = args
        self.net = Unet(1, 1, chans=args.chans)

    def forward(self, image):
        return self.net(image.unsqueeze(1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        loss = F.l1_loss(self(batch["image"]), batch["target"])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.l1_loss(self(batch["image"]), batch["target"]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.RMSprop(self.parameters(), lr=self.args.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.1)]

    def _loader(self, part):
        rate = self.args.keep_fraction if part == "train" else 1.0
        dataset = KneeSlices(f"{self.args.data_path}/{part}", UnetTransform(), rate)
        sampler = WholeVolumes(dataset, dist.get_world_size(), dist.get_rank())
        return DataLoader(dataset, batch_size=self.args.batch_size, sampler=sampler, num_workers=4)

    def train_dataloader(self):
        return self._loader("train")

    def val_dataloader(self):
        return self._loader("val")


def main(args):
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=args.gpus,
        strategy="ddp",
        max_epochs=args.max_epochs,
        use_distributed_sampler=False,
        default_root_dir=args.logdir,
    )
    trainer.fit(KneeModule(args))


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--logdir", default="logs")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--chans", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--keep_fraction", type=float, default=0.2)
    parser.add_argument("--max_epochs", type=int, default=50)
    args = parser.parse_args()
    main(args)
