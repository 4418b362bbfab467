import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import EnergyNet
from sampling import SystemFrames, SystemPool, batches_per_epoch, make_stream, system_weights


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", self.rank % torch.cuda.device_count())
        torch.manual_seed(cfg["seed"] + self.rank)
        self.pool = SystemPool(self._systems(cfg["train_systems"]), cfg["batch_size"])
        self.valid = SystemPool(self._systems(cfg["valid_systems"][self.rank::self.world]), cfg["batch_size"])
        weights = system_weights(self.pool, cfg["temperature"], self.device)
        self.stream = make_stream(self.pool, weights)
        self.num_steps = cfg.get("num_steps")
        if self.num_steps is None:
            self.num_steps = int(cfg["num_epochs"] * batches_per_epoch(self.pool, weights))
        self.full_valid_from = int(self.num_steps * cfg["full_valid_start"])
        self.model = DDP(EnergyNet(cfg["width"]).to(self.device), device_ids=[self.device.index])
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg["lr"])
        self.best = float("inf")

    def _systems(self, paths):
        return [SystemFrames(p, *torch.load(p)) for p in paths]

    def _loss(self, batch):
        batch = {k: v.to(self.device) for k, v in batch.items()}
        energy, force = self.model(batch["coord"])
        return (energy - batch["energy"]).square().mean() + (force - batch["force"]).square().mean()

    @torch.no_grad()
    def full_validation(self, step):
        self.model.eval()
        total = torch.zeros(2, device=self.device)
        for loader in self.valid.loaders:
            for batch in loader:
                energy, _ = self.model.module(batch["coord"].to(self.device))
                total[0] += (energy - batch["energy"].to(self.device)).abs().sum()
                total[1] += len(energy)
        dist.all_reduce(total)
        self.model.train()
        error = (total[0] / total[1]).item()
        if error < self.best:
            self.best = error
            if self.rank == 0:
                torch.save(self.model.module.state_dict(), f"best-{step}.pt")

    def run(self):
        for step in range(1, self.num_steps + 1):
            loss = self._loss(next(self.stream))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            due = step >= self.full_valid_from and (step - self.full_valid_from) % self.cfg["full_valid_every"] == 0
            if due:
                self.full_validation(step)
            if self.rank == 0 and step % self.cfg["disp_freq"] == 0:
                print(f"{step}/{self.num_steps} loss {loss.item():.5f}")


if __name__ == "__main__":
    dist.init_process_group("nccl")
    with open(sys.argv[1]) as handle:
        Trainer(json.load(handle)).run()
    dist.destroy_process_group()
