import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tally import forward_ops, sum_over_ranks


class Tutor:
    def __init__(self, model, loader, device, out, save_steps=200):
        self.model = model
        self.loader = loader
        self.device = device
        self.out = out
        self.save_steps = save_steps
        self.step = 0
        self.ops = 0.0
        self.total_ops = 0.0

    def is_world_zero(self):
        return not dist.is_initialized() or dist.get_rank() == 0

    def train(self, epochs):
        wrapped = self.model
        if dist.is_initialized():
            wrapped = DDP(self.model, device_ids=[self.device.index])
        opt = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for tokens in self.loader:
                self.training_step(wrapped, tokens.to(self.device), opt)
                if self.step % self.save_steps == 0:
                    self.save_model(os.path.join(self.out, f"checkpoint-{self.step}"))
        self.save_model(self.out)

    def training_step(self, wrapped, tokens, opt):
        logits = wrapped(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        self.step += 1
        self.ops += forward_ops(self.model, tokens)

    def save_model(self, folder):
        if self.is_world_zero():
            self._save(folder)

    def store_ops(self):
        if dist.is_initialized():
            self.total_ops += sum_over_ranks([self.ops], self.device)[0]
        else:
            self.total_ops += self.ops
        self.ops = 0.0

    def _save(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.store_ops()
        torch.save(self.model.state_dict(), os.path.join(folder, "model.pt"))
        with open(os.path.join(folder, "state.json"), "w") as f:
            json.dump({"step": self.step, "total_ops": self.total_ops}, f)
