import math
import os

import torch
import torch.nn as nn
from torch.distributed.tensor import DTensor


class LowRank(nn.Module):
    def __init__(self, base, rank=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


def adapter_weights(model):
    found = {}
    for name, p in model.named_parameters():
        if "lora_" in name:
            value = p.detach()
            if isinstance(value, DTensor):
                value = value.full_tensor()
            found[name] = value.cpu()
    return found


def write_weights(weights, folder):
    os.makedirs(folder, exist_ok=True)
    torch.save(weights, os.path.join(folder, "adapter.pt"))
