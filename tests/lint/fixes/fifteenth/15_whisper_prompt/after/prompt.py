import json
import os

import torch
from torch import nn


class PromptEncoder(nn.Module):
    def __init__(self, tokens, width, hidden):
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, indices):
        return self.mlp(self.table(indices))


class Prompted(nn.Module):
    def __init__(self, base, tokens=20, width=512, hidden=1024):
        super().__init__()
        self.base = base
        for weight in base.parameters():
            weight.requires_grad_(False)
        self.tokens = tokens
        self.width = width
        self.encoder = PromptEncoder(tokens, width, hidden)

    def indices(self):
        return torch.arange(self.tokens, device=next(self.parameters()).device)

    def prompt_for_saving(self):
        with torch.no_grad():
            return self.encoder(self.indices()).cpu()

    def forward(self, tokens):
        prompt = self.encoder(self.indices()).expand(len(tokens), -1, -1)
        return self.base(tokens, prompt)[:, self.tokens :]

    def save_pretrained(self, folder, write=True):
        prompt = self.prompt_for_saving()
        if not write:
            return
        os.makedirs(folder, exist_ok=True)
        torch.save({"prompt": prompt}, os.path.join(folder, "adapter.pt"))
        with open(os.path.join(folder, "adapter.json"), "w") as f:
            json.dump({"tokens": self.tokens, "width": self.width}, f)
