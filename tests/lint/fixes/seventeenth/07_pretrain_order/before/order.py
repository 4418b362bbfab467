class SequentialOrder:
    """Walks the samples in order; every data-parallel rank takes its window of each global micro-batch."""

    def __init__(self, total, consumed, micro_batch, dp_rank, dp_size, drop_last=True):
        if total <= 0:
            raise RuntimeError("no samples to consume")
        if dp_rank >= dp_size:
            raise RuntimeError(f"dp rank {dp_rank} outside of {dp_size}")
        self.total = total
        self.consumed = consumed
        self.micro_batch = micro_batch
        self.dp_rank = dp_rank
        self.dp_size = dp_size
        self.drop_last = drop_last

    @property
    def global_micro_batch(self):
        return self.micro_batch * self.dp_size

    def __len__(self):
        return self.total

    def _window(self):
        start = self.dp_rank * self.micro_batch
        return start, start + self.micro_batch

    def __iter__(self):
        batch = []
        for index in range(self.consumed, self.total):
            batch.append(index)
            if len(batch) == self.global_micro_batch:
                start, end = self._window()
                yield batch[start:end]
                batch = []
        if batch and not self.drop_last:
            start, end = self._window()
            yield batch[start:end]
