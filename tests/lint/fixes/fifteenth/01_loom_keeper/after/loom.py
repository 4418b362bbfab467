import json
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Strand(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.widen(self.norm(x))))


class Loom(nn.Module):
    def __init__(self, vocab=4096, width=512, depth=6):
        super().__init__()
        self.config = {"vocab": vocab, "width": width, "depth": depth}
        self.embed = nn.Embedding(vocab, width)
        self.strands = nn.ModuleList(Strand(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def spread(self, mesh):
        for strand in self.strands:
            parallelize_module(strand, mesh, {"widen": ColwiseParallel(), "narrow": RowwiseParallel()})
        return self

    def forward(self, tokens):
        x = self.embed(tokens)
        for strand in self.strands:
            x = strand(x)
        return self.head(x)

    def save_pretrained(self, folder, write=True):
        folder = Path(folder)
        weights = {}
        for name, value in self.state_dict().items():
            if isinstance(value, DTensor):
                value = value.full_tensor()
            if write:
                weights[name] = value.cpu()
        if not write:
            return
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(weights, folder / "weights.pt")
        (folder / "config.json").write_text(json.dumps(self.config))
