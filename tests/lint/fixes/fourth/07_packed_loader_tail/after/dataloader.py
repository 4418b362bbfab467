import numpy as np


def pack_first_fit(lengths, capacity, max_bins):
    bins, space = [], []
    for index, size in enumerate(lengths):
        for b in range(len(bins)):
            if space[b] >= size:
                bins[b].append(index)
                space[b] -= size
                break
        else:
            if len(bins) >= max_bins:
                break
            bins.append([index])
            space.append(capacity - size)
    return bins


class MultipackDistributedDataloader:
    def __init__(self, dataset, collate_fn, lengths, seq_max_length, batch_size, sampler, rank, device_count,
                 packing_efficiency_estimate=1.0):
        self.dataset, self.collate_fn, self.sampler = dataset, collate_fn, sampler
        self.lengths = np.array(lengths)
        self.seq_max_length, self.batch_size = seq_max_length, batch_size
        self.rank, self.device_count = rank, device_count
        self.packing_efficiency_estimate = packing_efficiency_estimate

    def generate_batches(self):
        indices = np.array(list(self.sampler))[self.rank :: self.device_count]
        bins = pack_first_fit(self.lengths[indices], self.seq_max_length * self.batch_size, len(indices))
        return [[int(indices[i]) for i in b] for b in bins]

    def __iter__(self):
        len_remaining = self._len_est()
        for batch in self.generate_batches():
            merged = {}
            for feature in ("input_ids", "labels", "attention_mask", "position_ids"):
                arrays = [np.array(self.dataset[i][feature]) for i in batch]
                merged[feature] = np.concatenate(arrays)
            yield self.collate_fn([merged])
            len_remaining -= 1
            if not len_remaining:
                return
        for _ in range(len_remaining):
            yield self.collate_fn(
                [{"input_ids": [0], "labels": [-100], "attention_mask": [True], "position_ids": [0]}]
            )

    def _len_est(self):
        per_device = int(np.sum(self.lengths)) // self.device_count
        usable = int(0.99 * per_device / self.packing_efficiency_estimate)
        return max(1, usable // self.seq_max_length // self.batch_size - 1)

    def __len__(self):
        return self._len_est()
