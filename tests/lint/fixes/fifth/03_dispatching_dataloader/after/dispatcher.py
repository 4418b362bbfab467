import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper


def describe(batch):
    return {k: (tuple(v.shape), v.dtype) for k, v in batch.items()}


class DispatchingLoader(DataLoader):
    def __init__(self, dataset, device, **kwargs):
        super().__init__(dataset, **kwargs)
        self.device = device
        self.rank = dist.get_rank()

    def _fetch(self, iterator):
        batch, info = None, [None, False]
        if self.rank == 0:
            try:
                batch = next(iterator)
                info = [describe(batch), False]
            except StopIteration:
                info = [None, True]
        dist.broadcast_object_list(info, src=0)
        return batch, info

    def __iter__(self):
        main_iterator = super().__iter__()
        batch, info = self._fetch(main_iterator)
        while not info[1]:
            if self.rank != 0:
                batch = {k: torch.empty(shape, dtype=dtype) for k, (shape, dtype) in info[0].items()}
            batch = {k: v.to(self.device) for k, v in batch.items()}
            for key in sorted(batch):
                dist.broadcast(batch[key], src=0)
            size = len(next(iter(batch.values()))) // dist.get_world_size()
            yield {k: v[self.rank * size : (self.rank + 1) * size] for k, v in batch.items()}
            batch, info = self._fetch(main_iterator)


def build_loader(records, batch_size, device):
    pipe = IterableWrapper(records).shuffle(buffer_size=10000)
    return DispatchingLoader(pipe, device, batch_size=batch_size, num_workers=2)
