import torch
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, concatenate, find_batch_size, send_to_device, slice_tensors
from torch.utils.data import DataLoader


class DataLoaderDispatcher(DataLoader):
    """Process 0 reads the batches and sends every other process its part."""

    def __init__(self, dataset, split_batches=False, **kwargs):
        super().__init__(dataset, **kwargs)
        self.split_batches = split_batches
        self.state = AcceleratorState()

    def _fetch_batches(self, iterator):
        batches, batch = None, None
        if self.state.process_index == 0:
            try:
                if self.split_batches:
                    batch = next(iterator)
                else:
                    batches = [next(iterator) for _ in range(self.state.num_processes)]
                    batch = concatenate(batches, dim=0)
                info = [find_batch_size(batch), False]
            except StopIteration:
                info = [None, True]
        else:
            info = [None, self._stop_iteration]
        packed = [info, batch]
        broadcast_object_list(packed)
        info, batch = packed
        self._stop_iteration = info[1]
        return batch

    def __iter__(self):
        main_iterator = None
        if self.state.process_index == 0:
            main_iterator = super().__iter__()
        self._stop_iteration = False
        while True:
            batch = self._fetch_batches(main_iterator)
            if self._stop_iteration:
                break
            batch = send_to_device(batch, self.state.device)
            size = find_batch_size(batch) // self.state.num_processes
            start = self.state.process_index * size
            yield slice_tensors(batch, slice(start, start + size))
