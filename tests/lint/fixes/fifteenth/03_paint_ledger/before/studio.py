import torch
from accelerate import Accelerator, DeepSpeedPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def open_studio(args):
    plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=args.accumulate)
    return Accelerator(
        mixed_precision="bf16",
        gradient_accumulation_steps=args.accumulate,
        deepspeed_plugin=plugin,
    )


class Brush(nn.Module):
    def __init__(self, channels=4, width=128):
        super().__init__()
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, noisy, level):
        x = nn.functional.silu(self.enter(noisy)) * level[:, None, None, None]
        return self.leave(nn.functional.silu(self.middle(x)))


def latents(args):
    return DataLoader(TensorDataset(torch.randn(4096, 4, 64, 64)), batch_size=args.batch, shuffle=True, drop_last=True)
