import hydra
import pytorch_lightning as pl
from torch.utils.data import DataLoader

from panoptic_module import PanopticModule
from scenes import SceneFolder, build_net


def sharded(folder, batch_size, shuffle):
    return DataLoader(SceneFolder(folder), batch_size=batch_size, shuffle=shuffle, num_workers=4)


class Scenes(pl.LightningDataModule):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg

    def train_dataloader(self):
        return sharded(self.cfg.train, self.cfg.batch_size, True)

    def val_dataloader(self):
        parts = []
        for folder in self.cfg.val.values():
            mine = SceneFolder(folder, self.trainer.global_rank, self.trainer.world_size)
            parts.append(DataLoader(mine, batch_size=1, num_workers=2))
        return parts


@hydra.main(config_path="conf", config_name="panoptic", version_base=None)
def main(cfg):
    pl.seed_everything(cfg.seed)
    module = PanopticModule(build_net(cfg.model), cfg.model.classes, list(cfg.data.val), cfg.lr)
    trainer = pl.Trainer(
        devices=cfg.devices, strategy="ddp", max_epochs=cfg.epochs,
        num_sanity_val_steps=0, use_distributed_sampler=False,
    )
    trainer.fit(module, datamodule=Scenes(cfg.data))


if __name__ == "__main__":
    main()
