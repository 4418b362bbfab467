import random

from torch.utils.data import IterableDataset


def shuffled(samples, buffer_size):
    buffer = []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) >= buffer_size:
            random.shuffle(buffer)
            yield from buffer
            buffer = []
    random.shuffle(buffer)
    yield from buffer


def dynamic_batches(samples, max_frames):
    batch, longest = [], 0
    for sample in samples:
        longest = max(longest, sample["frames"])
        if batch and longest * (len(batch) + 1) > max_frames:
            yield batch
            batch, longest = [], sample["frames"]
        batch.append(sample)
    if batch:
        yield batch


class SpeechDataset(IterableDataset):
    def __init__(self, samples, conf, rank, world_size, partition=True):
        self.samples = samples[rank::world_size] if partition else samples
        self.conf = conf

    def __iter__(self):
        samples = iter(self.samples)
        if self.conf.get("shuffle", True):
            samples = shuffled(samples, self.conf["shuffle_size"])
        yield from dynamic_batches(samples, self.conf["max_frames_in_batch"])
