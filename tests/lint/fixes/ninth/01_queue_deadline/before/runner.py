import torch
import torch.distributed as dist
from torch import nn


class SplitMLP(nn.Module):
    def __init__(self, width, group):
        super().__init__()
        part = 4 * width // dist.get_world_size(group)
        self.up = nn.Linear(width, part)
        self.down = nn.Linear(part, width, bias=False)
        self.group = group

    def forward(self, x):
        y = self.down(torch.relu(self.up(x)))
        dist.all_reduce(y, group=self.group)
        return x + y


class Runner:
    def __init__(self, vocab, width, depth, group):
        self.embed = nn.Embedding(vocab, width).cuda()
        self.blocks = nn.ModuleList(SplitMLP(width, group) for _ in range(depth)).cuda()

    def decode(self, batch):
        last = torch.tensor([j.tokens[-1] for j in batch], device="cuda")
        x = self.embed(last)
        for block in self.blocks:
            x = block(x)
        return (x @ self.embed.weight.t()).argmax(-1)
