"""Remedy: fewer loader workers. It shortens a slow start by the share of the workers, and never frees one that is stuck."""

from __future__ import annotations

import io
import time
from multiprocessing.reduction import ForkingPickler

import numpy as np
import torch  # noqa: F401 - its reductions are what a loader pickles with
from torch.utils.data import DataLoader, Dataset

from ranks import Result, tell

SAMPLES = 2_000_000
STUCK_S = 2.5


class InMemory(Dataset[float]):
    """All samples as Python objects: with `spawn` the parent pickles them for each worker, one after the other."""

    def __init__(self, samples: int) -> None:
        self.samples = [float(i) for i in range(samples)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> float:
        return self.samples[index]


class OnDisk(Dataset[float]):
    """Only what is needed to open the samples, which each worker does itself."""

    def __init__(self, samples: int) -> None:
        self.path, self.samples = "samples.npy", samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> float:
        return float(np.load(self.path, mmap_mode="r")[index])


class Stuck(Dataset[int]):
    """One sample never comes: a lock, a dead mount, an endless retry."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 5:
            time.sleep(STUCK_S)  # stands for ever; not longer, because a loader waits for its workers when it is closed
        return index


def start(dataset: Dataset[float], workers: int) -> tuple[float, int]:
    """Seconds and bytes that the parent pickles before the first batch, as `spawn` does it for each worker."""
    began, size_bytes = time.perf_counter(), 0
    for _ in range(workers):
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(dataset)
        size_bytes += buffer.tell()
    return time.perf_counter() - began, size_bytes


def stuck_after(workers: int) -> int:
    """Batches that come before the loader waits for ever."""
    batches = 0
    loader = DataLoader(Stuck(), 1, num_workers=workers, timeout=1, multiprocessing_context="fork")
    try:
        for _ in loader:
            batches += 1
    except RuntimeError:  # the loader's own limit, which is off unless it is given
        return batches
    raise AssertionError("no batch is missing")


def measure(is_quick: bool) -> Result:
    """Runs it; quick: with the fewest repeats and the shortest waits."""
    samples = SAMPLES // (20 if is_quick else 1)
    memory, disk = InMemory(samples), OnDisk(samples)
    many, one, small = start(memory, 4), start(memory, 1), start(disk, 4)
    return {
        "samples": samples,
        "pickled_mb_4_workers": many[1] / 1e6,
        "pickled_mb_1_worker": one[1] / 1e6,
        "seconds_4_workers": many[0],
        "seconds_1_worker": one[0],
        "pickled_mb_4_workers_if_each_opens_the_file": small[1] / 1e6,
        "batches_before_a_stuck_sample_4_workers": stuck_after(4),
        "batches_before_a_stuck_sample_1_worker": stuck_after(1),
    }


if __name__ == "__main__":
    tell(__doc__, measure(False))
