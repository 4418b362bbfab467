import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


class ExperimentPipe(IterableDataset):
    def __init__(self, joinids, chunk_size, batch_size):
        self.joinids = joinids
        self.chunk_size = chunk_size
        self.batch_size = batch_size

    def chunks(self):
        even = len(self.joinids) // dist.get_world_size()
        mine = self.joinids[dist.get_rank() * even : (dist.get_rank() + 1) * even]
        return [mine[i : i + self.chunk_size] for i in range(0, len(mine), self.chunk_size)]

    def __iter__(self):
        for chunk in self.chunks():
            for at in range(0, len(chunk), self.batch_size):
                yield chunk[at : at + self.batch_size]
