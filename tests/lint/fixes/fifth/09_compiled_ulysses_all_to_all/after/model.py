import torch
from torch.distributed.fsdp import fully_shard

from ulysses import UlyssesAttention


class Block(torch.nn.Module):
    def __init__(self, cfg, group):
        super().__init__()
        self.norm = torch.nn.RMSNorm(cfg.dim)
        self.attention = UlyssesAttention(cfg.dim, cfg.heads, group)
        self.mlp = torch.nn.Sequential(
            torch.nn.RMSNorm(cfg.dim), torch.nn.Linear(cfg.dim, 4 * cfg.dim), torch.nn.GELU(), torch.nn.Linear(4 * cfg.dim, cfg.dim)
        )

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


def parallelize(blocks, mesh):
    for i, block in enumerate(blocks):
        blocks[i] = torch.compile(block, fullgraph=False)
        fully_shard(blocks[i], mesh=mesh)
    return blocks
