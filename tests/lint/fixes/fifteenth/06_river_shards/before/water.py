import torch
from torch import nn


class Wave(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        mixed, _ = self.mix(self.norm(x))
        return x + self.out(mixed)


class Water(nn.Module):
    def __init__(self, vocab=8192, width=512, depth=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.waves = nn.ModuleList(Wave(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens):
        x = self.embed(tokens)
        for wave in self.waves:
            x = wave(x)
        return self.head(x)


def next_token_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
