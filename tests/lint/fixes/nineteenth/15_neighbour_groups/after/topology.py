from datetime import timedelta

import torch
import torch.distributed as dist


class PairAveraging:
    def __init__(self, model, seed=0, every=10):
        self.model = model
        self.every = every
        self.steps = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.group = None
        self.reshuffle()

    def reshuffle(self):
        if self.group is not None:
            dist.destroy_process_group(self.group)
        rank = dist.get_rank()
        perm = torch.randperm(dist.get_world_size(), generator=self.generator).tolist()
        for start in range(0, len(perm), 2):
            members = sorted(perm[start : start + 2])
            group = dist.new_group(members, timeout=timedelta(seconds=30))
            if rank in members:
                self.group = group
                self.size = len(members)

    @torch.no_grad()
    def step(self):
        self.steps += 1
        if self.steps % self.every:
            return
        for param in self.model.parameters():
            dist.all_reduce(param.data, group=self.group)
            param.data.div_(self.size)
