import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, device, archive):
        self.model = model.to(device)
        self.device = device
        self.archive = archive
        self.wrapped = DDP(self.model, device_ids=[device])
        self.opt = torch.optim.AdamW(self.wrapped.parameters(), lr=1e-3)
        self.step = 0

    def dump(self):
        state = {"model": self.model.state_dict(), "step": self.step}
        self.archive.on_save(self)
        return state

    def save(self, path):
        state = self.dump()
        if dist.get_rank() == 0:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            torch.save(state, path)
        dist.barrier()

    def fit(self, loader, val_loader, epochs):
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                loss = torch.nn.functional.mse_loss(self.wrapped(x.to(self.device)), y.to(self.device))
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.step += 1
            self.archive.consider(self, self.validate(val_loader))

    @torch.no_grad()
    def validate(self, loader):
        total = torch.zeros(2, device=self.device)
        for x, y in loader:
            error = (self.model(x.to(self.device)) - y.to(self.device)).pow(2)
            total += torch.stack([error.sum(), torch.tensor(float(error.numel()), device=self.device)])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()
