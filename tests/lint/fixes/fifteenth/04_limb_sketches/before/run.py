import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from callbacks import SketchBoard, SketchFolder
from limbs import LimbNet, Sketcher, loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--out", default="limbs")
    parser.add_argument("--csv", action="store_true")
    args = parser.parse_args()
    loggers = [TensorBoardLogger(args.out)]
    if args.csv:
        loggers.append(CSVLogger(args.out))
    sketcher = Sketcher(torch.randn(1, 1, 64, 64))
    trainer = pl.Trainer(
        accelerator="gpu", devices=args.devices, strategy="ddp", max_epochs=20, logger=loggers,
        callbacks=[SketchFolder(args.out, sketcher), SketchBoard(sketcher)],
    )
    trainer.fit(LimbNet(), loader())


if __name__ == "__main__":
    main()
