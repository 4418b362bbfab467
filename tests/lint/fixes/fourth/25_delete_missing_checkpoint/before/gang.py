from abc import ABC, abstractmethod

import torch
import torch.distributed as dist


class Gang(ABC):
    rank: int
    size: int

    @abstractmethod
    def barrier(self): ...

    @abstractmethod
    def all_reduce(self, tensor): ...


class FakeGang(Gang):
    def __init__(self):
        self.rank, self.size = 0, 1

    def barrier(self):
        pass

    def all_reduce(self, tensor):
        pass


class ProcessGroupGang(Gang):
    def __init__(self, pg, monitor_pg=None):
        self._pg, self._monitor_pg = pg, monitor_pg
        self.rank, self.size = dist.get_rank(pg), dist.get_world_size(pg)

    def barrier(self):
        if self._monitor_pg is None:
            dist.barrier(group=self._pg)
        else:
            dist.monitored_barrier(group=self._monitor_pg, wait_all_ranks=True)

    def all_reduce(self, tensor):
        dist.all_reduce(tensor, group=self._pg)
