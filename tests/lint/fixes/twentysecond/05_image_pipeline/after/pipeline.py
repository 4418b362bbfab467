import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torchvision.utils import save_image

from patch_decoder import PatchDecoder


@dataclass
class PipelineConfig:
    size: int = 1024
    steps: int = 28
    channels: int = 16
    hidden: int = 512
    layers: int = 24
    scaling_factor: float = 1.5305


class StageTransformer(nn.Module):
    def __init__(self, config, rank, world):
        super().__init__()
        self.inp = nn.Linear(config.channels, config.hidden) if rank == 0 else nn.Identity()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(config.hidden, 8, batch_first=True) for _ in range(config.layers // world)
        )
        self.out = nn.Linear(config.hidden, config.channels) if rank == world - 1 else nn.Identity()

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class StagedImagePipeline:
    def __init__(self, config):
        self.config = config
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.transformer = StageTransformer(config, self.rank, self.world).to(self.device)
        self.decoder = PatchDecoder(config.channels).to(self.device)

    @property
    def is_last_stage(self):
        return self.rank == self.world - 1

    def _latents(self, seed):
        g = torch.Generator(self.device).manual_seed(seed)
        shape = (1, self.config.channels, self.config.size // 8, self.config.size // 8)
        return torch.randn(shape, device=self.device, generator=g)

    def _predict(self, latents):
        b, c, h, w = latents.shape
        x = latents.flatten(2).transpose(1, 2)
        if self.rank > 0:
            x = torch.empty(b, h * w, self.config.hidden, device=self.device)
            dist.recv(x, src=self.rank - 1)
        x = self.transformer(x)
        if not self.is_last_stage:
            dist.send(x.contiguous(), dst=self.rank + 1)
            noise = torch.empty(b, h * w, c, device=self.device)
        else:
            noise = x.contiguous()
        dist.broadcast(noise, src=self.world - 1)
        return noise.transpose(1, 2).reshape(b, c, h, w)

    @torch.no_grad()
    def __call__(self, seed=0):
        latents = self._latents(seed)
        sigmas = torch.linspace(1.0, 0.0, self.config.steps + 1, device=self.device)
        for i in range(self.config.steps):
            latents = latents + (sigmas[i + 1] - sigmas[i]) * self._predict(latents)

        latents = latents / self.config.scaling_factor
        image = self.decoder(latents)
        if self.is_last_stage:
            return (image / 2 + 0.5).clamp(0, 1)
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    pipe = StagedImagePipeline(PipelineConfig())
    for seed in args.seeds:
        image = pipe(seed)
        if pipe.is_last_stage:
            save_image(image, f"image_{seed}.png")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
