from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attend(y, y, y)[0]
        return x + self.mix(x)


class Vision(nn.Module):
    def __init__(self, width=192, depth=6, classes=20):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, stride=8)
        self.blocks = nn.Sequential(*[Encoder(width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))


def build():
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Encoder})
    return FSDP(Vision(), auto_wrap_policy=policy, device_id=torch.cuda.current_device())
