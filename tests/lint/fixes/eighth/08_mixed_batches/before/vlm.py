import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.mix = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)

    def forward(self, pixels):
        grid = self.patch(pixels).flatten(2).transpose(1, 2)
        return self.mix(grid)


class TinyVLM(nn.Module):
    def __init__(self, vocab=8192, width=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.vision = Tower(width)
        self.decoder = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens, pixels=None):
        hidden = self.embed(tokens)
        if pixels is not None:
            seen = self.vision(pixels)
            hidden = torch.cat([seen, hidden], dim=1)
        return self.head(self.decoder(hidden))[:, -tokens.shape[1]:]


def shard(model):
    fully_shard(model.vision)
    fully_shard(model.decoder)
    fully_shard(model)
    return model
