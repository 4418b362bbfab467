from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn.functional as F

from pair_guard import together


class PairTrainer:
    def __init__(self, net, device, beta=0.1):
        self.net = net
        self.device = device
        self.beta = beta
        self.opt = torch.optim.AdamW(net.parameters(), lr=1e-6)
        self.history = defaultdict(list)

    def rewards(self, ids, images):
        slots = int((ids == self.net.image_token).sum())
        if slots != images.shape[0]:
            raise ValueError(f"{slots} image tokens, {images.shape[0]} images")
        return self.beta * self.net(ids, images)

    def forward_pair(self, batch):
        good = self.rewards(batch["good"], batch["images"])
        bad = self.rewards(batch["bad"], batch["images"])
        return good, bad

    def note(self, good, bad):
        row = torch.stack([good.mean(), bad.mean(), (good > bad).float().mean()]).detach()
        rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, row)
        mean = torch.stack(rows).mean(0).tolist()
        for key, value in zip(("good", "bad", "accuracy"), mean):
            self.history[key].append(value)

    def pair_loss(self, batch):
        good, bad = together(lambda: self.forward_pair(batch), self.device)
        self.note(good, bad)
        return -F.logsigmoid(good - bad).mean()

    def step(self, batch):
        batch = {k: v.to(self.device) for k, v in batch.items()}
        loss = self.pair_loss(batch)
        self.opt.zero_grad()
        loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        self.opt.step()
