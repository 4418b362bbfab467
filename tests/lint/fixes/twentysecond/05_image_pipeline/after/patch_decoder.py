import torch
import torch.distributed as dist
import torch.nn as nn


class RowSplit(nn.Module):
    def forward(self, x):
        world, rank = dist.get_world_size(), dist.get_rank()
        return x.chunk(world, dim=2)[rank].contiguous()


class RowJoin(nn.Module):
    def forward(self, x):
        bands = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(bands, x.contiguous())
        return torch.cat(bands, dim=2)


class BandConv(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv
        self.pad = conv.padding[0]

    def forward(self, x):
        edges = torch.stack([x[:, :, : self.pad], x[:, :, -self.pad :]])
        every = [torch.empty_like(edges) for _ in range(dist.get_world_size())]
        dist.all_gather(every, edges.contiguous())
        rank = dist.get_rank()
        zero = torch.zeros_like(edges[0])
        above = every[rank - 1][1] if rank > 0 else zero
        below = every[rank + 1][0] if rank + 1 < len(every) else zero
        y = self.conv(torch.cat([above, x, below], dim=2))
        return y[:, :, self.pad : -self.pad]


class PatchDecoder(nn.Module):
    def __init__(self, channels=16, width=128):
        super().__init__()
        self.split = RowSplit()
        self.inp = BandConv(nn.Conv2d(channels, width, 3, padding=1))
        self.mid = BandConv(nn.Conv2d(width, width, 3, padding=1))
        self.up = nn.Upsample(scale_factor=8, mode="nearest")
        self.out = BandConv(nn.Conv2d(width, 3, 3, padding=1))
        self.join = RowJoin()

    def forward(self, z):
        h = torch.nn.functional.silu(self.inp(self.split(z)))
        h = torch.nn.functional.silu(self.mid(h))
        return self.join(self.out(self.up(h)))
