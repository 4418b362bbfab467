import pytorch_lightning as pl

from region_data import RegionData
from region_module import RegionModule


def main():
    data = RegionData()
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=8,
        strategy="ddp",
        max_epochs=5,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(RegionModule(list(data.sizes)), datamodule=data)


if __name__ == "__main__":
    main()
