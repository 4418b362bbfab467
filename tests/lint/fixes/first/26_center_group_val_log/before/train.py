import argparse

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from data import PoseData
from pose_module import CenterGroup
from registry import build_posenet


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="output")
    parser.add_argument("--num_gpus", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    data = PoseData()
    model = CenterGroup(build_posenet(), data.val_dataset, {"lr": args.lr * args.num_gpus})
    trainer = pl.Trainer(
        gpus=args.num_gpus,
        strategy="ddp",
        precision=16,
        callbacks=[ModelCheckpoint(monitor="AP/val", mode="max", save_top_k=3, save_last=True)],
        logger=pl.loggers.TensorBoardLogger(args.out),
    )
    trainer.fit(model, datamodule=data)


if __name__ == "__main__":
    main()
