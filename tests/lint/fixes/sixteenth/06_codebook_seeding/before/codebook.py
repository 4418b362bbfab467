import torch
import torch.distributed as dist
from torch import nn

from ragged import gather_ragged, sizes_of


def draw(vectors, count):
    total = vectors.size(1)
    picks = torch.randperm(total)[:count] if total >= count else torch.randint(total, (count,))
    return vectors[:, picks.to(vectors.device)]


def draw_everywhere(vectors, count):
    sizes = sizes_of(vectors, axis=0)
    share = torch.empty_like(sizes)
    if dist.get_rank() == 0:
        hits = torch.multinomial(sizes / sizes.sum(), count, replacement=True)
        share.copy_(torch.bincount(hits, minlength=len(sizes)))
    dist.broadcast(share, 0)
    mine = draw(vectors, share[dist.get_rank()].item())
    return gather_ragged(mine, share.tolist(), axis=0)


class Codebook(nn.Module):
    def __init__(self, heads, codes, width):
        super().__init__()
        self.codes = codes
        self.register_buffer("table", torch.zeros(heads, codes, width))
        self.register_buffer("seeded", torch.tensor(False))

    @torch.no_grad()
    def seed(self, vectors, rounds=10):
        table = draw_everywhere(vectors, self.codes)
        for _ in range(rounds):
            near = torch.cdist(vectors, table).argmin(-1)
            picked = nn.functional.one_hot(near, self.codes).to(vectors.dtype)
            counts, sums = picked.sum(1), picked.transpose(1, 2) @ vectors
            dist.all_reduce(counts)
            dist.all_reduce(sums)
            table = torch.where(counts[..., None] > 0, sums / counts.clamp(min=1)[..., None], table)
        self.table.copy_(table)
        self.seeded.fill_(True)

    def forward(self, vectors):
        if not self.seeded:
            self.seed(vectors)
        near = torch.cdist(vectors, self.table).argmin(-1)
        chosen = self.table.gather(1, near[..., None].expand(-1, -1, vectors.size(-1)))
        return vectors + (chosen - vectors).detach(), (chosen - vectors).pow(2).mean()
