import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from asr_parts import build_model, build_loaders, edit_counts
from keeper import Keeper
from parallel import on_main


class Recipe:
    def __init__(self, epochs=20):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        self.model = build_model().to(self.device)
        self.ddp = DDP(self.model, device_ids=[self.device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.train_loader, self.valid_loader = build_loaders(dist.get_rank(), dist.get_world_size())
        self.keeper = Keeper("results/save", {"model": self.model, "optimizer": self.optimizer})
        self.epochs = epochs

    def fit(self):
        for epoch in range(self.epochs):
            self.ddp.train()
            for wavs, lens, tokens in self.train_loader:
                loss = self.ddp(wavs.to(self.device), lens.to(self.device), tokens.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            stats = self.validate()
            stats["epoch"] = epoch
            self.keep_best(stats)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        counts = torch.zeros(2, device=self.device)
        for wavs, lens, tokens in self.valid_loader:
            hyps = self.model.decode(wavs.to(self.device), lens.to(self.device))
            counts += torch.tensor(edit_counts(hyps, tokens), device=self.device)
        dist.all_reduce(counts)
        return {"WER": (counts[0] / counts[1]).item() * 100}

    @on_main
    def keep_best(self, stats):
        print(f"epoch {stats['epoch']}: WER {stats['WER']:.2f}")
        self.keeper.save_and_prune(stats, key="WER", count=1)


if __name__ == "__main__":
    dist.init_process_group("nccl")
    Recipe().fit()
    dist.destroy_process_group()
