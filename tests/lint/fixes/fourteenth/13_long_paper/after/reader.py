import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Reader(nn.Module):
    def __init__(self, words=8000, width=96, classes=4):
        super().__init__()
        self.embed = nn.EmbeddingBag(words, width)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, pages):
        return self.out(self.drop(self.embed(pages)))


class Trainer:
    def __init__(self, config, judge, progress, device):
        self.config = config
        self.judge = judge
        self.progress = progress
        self.device = device
        self.model = DDP(Reader().to(device), device_ids=[device.index])
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=config.lr)

    def one_step(self, pages, labels):
        loss = nn.functional.cross_entropy(self.model(pages.to(self.device)), labels.to(self.device))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.progress.step += 1

    def epoch(self, loader):
        progress = self.progress
        for pages, labels in loader:
            self.one_step(pages, labels)
            if progress.step % self.config.eval_every == 0:
                progress.accuracy = self.judge.rate(self.model)
            if progress.should_stop(self.config):
                return
        progress.epoch += 1
