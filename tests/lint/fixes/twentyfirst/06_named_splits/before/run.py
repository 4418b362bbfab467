import json
import sys
from pathlib import Path

import lightning as L
from datasets import load_from_disk
from torch.utils.data import DataLoader, Subset
from transformers import AutoProcessor

from module import StreetSegmenter


class StreetData(L.LightningDataModule):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.processor = AutoProcessor.from_pretrained(cfg["checkpoint"])

    def collate(self, rows):
        inputs = self.processor(images=[r["image"] for r in rows], task_inputs=["semantic"] * len(rows),
                                segmentation_maps=[r["label"] for r in rows], return_tensors="pt")
        return {"inputs": inputs, "label": inputs["pixel_labels"]}

    def _loader(self, data, shuffle=False):
        return DataLoader(data, self.cfg["batch_size"], shuffle=shuffle, drop_last=shuffle,
                          num_workers=4, collate_fn=self.collate)

    def train_dataloader(self):
        data = load_from_disk(self.cfg["train"])
        rank, size = self.trainer.global_rank, self.trainer.world_size
        each = len(data) // size
        return self._loader(Subset(data, range(rank * each, (rank + 1) * each)), shuffle=True)

    def val_dataloader(self):
        rank, size = self.trainer.global_rank, self.trainer.world_size
        loaders = []
        for path in self.cfg["splits"].values():
            data = load_from_disk(path)
            loaders.append(self._loader(Subset(data, range(rank, len(data), size))))
        return loaders


if __name__ == "__main__":
    cfg = json.loads(Path(sys.argv[1]).read_text())
    L.seed_everything(cfg.get("seed", 0))
    model = StreetSegmenter(cfg["checkpoint"], cfg["classes"], list(cfg["splits"]))
    trainer = L.Trainer(accelerator="gpu", devices=8, strategy="ddp", use_distributed_sampler=False,
                        max_epochs=cfg["epochs"], num_sanity_val_steps=0)
    trainer.fit(model, datamodule=StreetData(cfg))
