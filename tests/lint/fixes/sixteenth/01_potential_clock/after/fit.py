import argparse

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from molecules import Molecules
from potential import Potential


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--out", default="runs")
    args = parser.parse_args()

    L.seed_everything(7)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=args.epochs,
        default_root_dir=args.out,
        callbacks=[ModelCheckpoint(monitor="val/mae"), EarlyStopping("val/mae", patience=12)],
    )
    trainer.fit(Potential(), datamodule=Molecules())


if __name__ == "__main__":
    main()
