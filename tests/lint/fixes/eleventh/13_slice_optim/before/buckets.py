from dataclasses import dataclass

import torch


@dataclass
class Bucket:
    params: list
    numel: int
    shard: int
    start: int
    stop: int

    def flat(self, pick):
        return torch.cat([pick(p).reshape(-1) for p in self.params])

    def scatter_back(self, flat):
        at = 0
        for p in self.params:
            p.data.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()


def make_buckets(params, rank, world, limit=1 << 12):
    groups, size = [[]], 0
    for p in params:
        if groups[-1] and size + p.numel() > limit:
            groups.append([])
            size = 0
        groups[-1].append(p)
        size += p.numel()
    out = []
    for group in groups:
        numel = sum(p.numel() for p in group)
        shard = -(-numel // world)
        start = min(rank * shard, numel)
        out.append(Bucket(group, numel, shard, start, min(start + shard, numel)))
    return out
