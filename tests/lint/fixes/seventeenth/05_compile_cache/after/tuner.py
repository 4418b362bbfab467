from dataclasses import dataclass
from typing import Optional

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from datasets import load_dataset
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hub_cache import CACHE_DIR, pull_cache, push_cache


@dataclass
class TunerArguments:
    model_name: str = "bert-base-uncased"
    output_dir: str = "out"
    epochs: int = 3
    batch_size: int = 16
    lr: float = 3e-5
    cache_repo: Optional[str] = None
    skip_cache_push: bool = False


class Tuner:
    def __init__(self, args):
        self.args = args
        self.device = xm.xla_device()
        self.tokenizer = AutoTokenizer.from_pretrained(args.model_name)
        self.model = AutoModelForSequenceClassification.from_pretrained(args.model_name).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def loader(self):
        data = load_dataset("glue", "sst2", split="train")
        data = data.map(lambda x: self.tokenizer(x["sentence"], padding="max_length", max_length=128, truncation=True))
        data.set_format("torch", columns=["input_ids", "attention_mask", "label"])
        sampler = DistributedSampler(data, xr.world_size(), xr.global_ordinal(), drop_last=True)
        return pl.MpDeviceLoader(DataLoader(data, self.args.batch_size, sampler=sampler, drop_last=True), self.device)

    def synchronize_hub_cache(self):
        if self.args.cache_repo is None:
            return
        if not self.args.skip_cache_push:
            push_cache(CACHE_DIR, self.args.cache_repo)
        xm.rendezvous("hub cache synchronised")

    def train(self):
        if self.args.cache_repo is not None:
            pull_cache(CACHE_DIR, self.args.cache_repo)
        loader = self.loader()
        for epoch in range(self.args.epochs):
            self.model.train()
            for batch in loader:
                labels = batch.pop("label")
                loss = self.model(**batch, labels=labels).loss
                loss.backward()
                xm.optimizer_step(self.optimizer)
                self.optimizer.zero_grad()
            mean = xm.mesh_reduce("epoch_loss", loss.item(), lambda v: sum(v) / len(v))
            xm.master_print(f"epoch {epoch} loss {mean:.4f}")
        self.synchronize_hub_cache()
        xm.save(self.model.state_dict(), f"{self.args.output_dir}/model.pt")


def _worker(index, args):
    Tuner(args).train()


if __name__ == "__main__":
    xmp.spawn(_worker, args=(TunerArguments(cache_repo="acme/compile-cache"),))
