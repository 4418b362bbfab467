import torch.nn as nn
from torch.distributed.fsdp import fully_shard

from ponder import Block, PonderStack


class LoopedLM(nn.Module):
    def __init__(self, vocab=8192, dim=512, heads=8, turns=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.first = Block(dim, heads)
        self.core = PonderStack(dim, heads, turns)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.core(self.first(self.embed(ids))))


def shard(model):
    fully_shard(model.first)
    fully_shard(model.core.block, reshard_after_forward=True)
    fully_shard(model)
    return model
