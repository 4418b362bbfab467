"""What one batch of a loader weighs and what its workers are sent, measured in a child process that is thrown away.

In a child, because a dataset that is touched before its workers are made may open files that they must not share, or draw
random numbers. The child lives as a worker of the loader does: it is forked, and computes on one thread.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import context, reduction
from typing import Any

MOST_PICKLED = 8 << 30
_DEEPEST = 8
_END_LIMIT_S = 1.0
_MOST_ANSWER = 1 << 16


@dataclass
class Measured:
    """`None` where it could not be measured; `problem` then says why.

    `pickled_bytes`: what spawn sends to each worker, without the tensors, which go through shared memory;
    `is_pickled`: whether that came to its end.
    """

    tensors: int | None = None
    batch_bytes: int | None = None
    pickled_bytes: int | None = None
    pickled_tensor_bytes: int = 0
    pickle_s: float = 0.0
    is_pickled: bool = False
    pickle_problem: str = ""
    problem: str = ""


def start_method(loader: Any) -> str:
    """How this loader's workers are started: fork, spawn or forkserver."""
    chosen = getattr(loader, "multiprocessing_context", None)
    if chosen is not None:
        return str(chosen.get_start_method())
    # Asking for the default the usual way would fix it for the whole process.
    return str(multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0])


def measure(loader: Any, limit_s: float = 5.0) -> Measured:
    """Weighs a batch and, where workers are spawned, the dataset. Blocks up to `limit_s`, and a moment for the fork."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork in a process with threads; the loader does the same.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        _be_child(loader, limit_s, reader, writer)
    os.close(writer)
    try:
        return _read(reader, limit_s)
    finally:
        os.close(reader)
        _end(pid)


def _end(pid: int) -> None:
    """Kills and reaps the child. Blocks up to a second: one that waits for a file system that hangs cannot be ended."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _END_LIMIT_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.005)


def _read(reader: int, limit_s: float) -> Measured:
    """The last line that the child has written within the limit: it writes one after each thing that it has measured."""
    until = time.monotonic() + limit_s
    text = b""
    while len(text) < _MOST_ANSWER:
        ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
        part = os.read(reader, 1 << 12) if ready else b""
        if not part:
            break
        text += part
    lines = [line for line in text.split(b"\n")[:-1] if line]
    found = Measured(**json.loads(lines[-1])) if lines else Measured()
    if not lines:
        found.problem = f"it took more than {limit_s:g} s, or its process ended"
    return found


def _be_child(loader: Any, limit_s: float, reader: int, writer: int) -> None:
    """The child's life; does not return."""
    try:
        os.close(reader)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.modules["torch"].set_num_threads(1)
        found = Measured()
        for step in (_weigh_batch, _weigh_pickle):
            try:
                step(loader, found, time.monotonic() + 0.8 * limit_s)
            except BaseException as error:  # noqa: BLE001 - whatever the dataset does belongs into the answer
                found.problem = f"{type(error).__name__}: {error}"[:300]
            os.write(writer, json.dumps(asdict(found)).encode() + b"\n")
    finally:
        os._exit(0)


def _weigh_batch(loader: Any, found: Measured, until: float) -> None:
    """From two samples: what a batch has in common and what each further sample adds to it."""
    if loader.batch_size is None and loader.batch_sampler is None:
        sample = next(iter(loader.dataset)) if _is_stream(loader) else loader.dataset[next(iter(loader.sampler))]
        found.tensors, found.batch_bytes = _weight(loader.collate_fn(sample))
        return
    count, samples = _samples(loader)
    if not samples:
        found.tensors, found.batch_bytes = 0, 0
        return
    one = _weight(loader.collate_fn(samples[:1]))
    both = _weight(loader.collate_fn(samples)) if len(samples) > 1 else one
    found.tensors = one[0] + (both[0] - one[0]) * (count - 1)
    found.batch_bytes = one[1] + (both[1] - one[1]) * (count - 1)


def _is_stream(loader: Any) -> bool:
    return isinstance(loader.dataset, sys.modules["torch.utils.data"].IterableDataset)


def _samples(loader: Any) -> tuple[int, list[Any]]:
    """The size of a batch, and its first two samples."""
    if _is_stream(loader):
        return loader.batch_size, list(islice(loader.dataset, min(2, loader.batch_size)))
    indices = list(next(iter(loader.batch_sampler), ()))
    return len(indices), [loader.dataset[index] for index in indices[:2]]


def _weight(value: Any, depth: int = 0) -> tuple[int, int]:
    """Tensors in a batch, and their bytes."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return 1, value.numel() * value.element_size()
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (list, tuple, set)):
        parts = value
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = vars(value).values()
    if depth >= _DEEPEST:
        return 0, 0
    weights = [_weight(part, depth + 1) for part in parts]
    return sum(w[0] for w in weights), sum(w[1] for w in weights)


class _Enough(Exception):
    """So much has been pickled that the answer is clear."""


class _Sink(io.RawIOBase):
    """Counts bytes, and keeps none."""

    def __init__(self, until: float) -> None:
        self.size, self._until = 0, until

    def write(self, data: Any) -> int:
        self.size += len(memoryview(data))
        if self.size > MOST_PICKLED or time.monotonic() > self._until:
            raise _Enough
        return len(memoryview(data))


class _Spawning:
    """Stands for the process to be started: locks and pipes let themselves be pickled for nothing else."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd


def _weigh_pickle(loader: Any, found: Measured, until: float) -> None:
    if start_method(loader) == "fork":
        return
    torch = sys.modules["torch"]

    class Counting(reduction.ForkingPickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                found.pickled_tensor_bytes += value.numel() * value.element_size()
                return int, ()
            return NotImplemented

    sink, began = _Sink(until), time.monotonic()
    set_spawning: Callable[[Any], None] = context.set_spawning_popen
    set_spawning(_Spawning())
    try:
        Counting(sink, pickle.HIGHEST_PROTOCOL).dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
        found.is_pickled = True
    except _Enough:
        pass
    except Exception as error:  # noqa: BLE001 - the spawned worker would fail with it
        found.pickle_problem = f"{type(error).__name__}: {error}"[:300]
    finally:
        set_spawning(None)
    found.pickled_bytes, found.pickle_s = sink.size, time.monotonic() - began
