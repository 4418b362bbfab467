import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from cases import case_loader
from measures import Measured


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1))
        self._losses = {}

    def forward(self, x):
        y = self.net(x)
        self._losses = {"consistency": (y - x).abs().mean().item()}
        return y

    def last_losses(self):
        return dict(self._losses)


class Predictor:
    def __init__(self, model, out, log_dir):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = model
        self.out = out
        self.tb = SummaryWriter(log_dir) if log_dir else None
        os.makedirs(out, exist_ok=True)

    def _log(self, step):
        if self.tb is None:
            return
        values = Measured.collect(self.rank, {"denoiser": self.model})
        if self.rank != 0:
            return
        for label, losses in values.items():
            for name, value in losses.items():
                self.tb.add_scalar(f"{label}/{name}", value, step)

    @torch.no_grad()
    def run(self, loader):
        self.model.eval()
        for step, (patch, number, z) in enumerate(loader):
            result = self.model(patch.cuda()).cpu()
            for volume, case, offset in zip(result, number.tolist(), z.tolist()):
                torch.save(volume, os.path.join(self.out, f"{case}_{offset}.pt"))
            self._log(step)
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="predictions")
    parser.add_argument("--log-dir", default="tb")
    parser.add_argument("--batch-size", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    listing = [(n, 96 + 32 * (n % 5)) for n in range(30)]
    loader = case_loader(dist.get_rank(), dist.get_world_size(), listing, args.batch_size)
    Predictor(Denoiser().cuda(), args.out, args.log_dir).run(loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
