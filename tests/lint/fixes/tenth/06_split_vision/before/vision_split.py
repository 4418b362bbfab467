import torch.distributed as dist
import torch.nn as nn

from embed_gather import join_rows


class PatchTower(nn.Module):
    def __init__(self, pixels, dim, depth=4):
        super().__init__()
        self.dim = dim
        self.inp = nn.Linear(pixels, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth)

    def forward(self, images):
        return self.body(self.inp(images)).mean(1)


class SplitVision(nn.Module):
    """Each context-parallel rank encodes its part of the images of the sample."""

    def __init__(self, tower, group):
        super().__init__()
        self.tower = tower
        self.group = group

    def forward(self, images):
        world = dist.get_world_size(self.group)
        me = dist.get_rank(self.group)
        base, extra = divmod(images.shape[0], world)
        counts = [base + (r < extra) for r in range(world)]
        start = sum(counts[:me])
        own = images[start : start + counts[me]]
        if counts[me]:
            rows = self.tower(own)
        else:
            rows = images.new_zeros(0, self.tower.dim)
        return join_rows(rows, counts, self.group)
