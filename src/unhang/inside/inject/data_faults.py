"""Faults of the data loader and of the disk: too few batches, late, broken or none; saves that are slow, stuck or refused."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import program
from .fault import (
    BATCH,
    EVER_S,
    RANK,
    Armed,
    Fault,
    Parameter,
    Ready,
    from_now_on,
    once_at,
    rank_of,
    seconds,
    sleep_delay,
)

_LOADER = "torch.utils.data.DataLoader"
Fetch = Callable[[], Any]


def _at_fetch(act: Callable[[Armed, Fetch], Any]) -> Ready:
    """Calls `act` in the place of the fetch of the batch whose turn it is."""

    def make_ready(armed: Armed) -> None:
        def wrap(fetch: Fetch) -> Fetch:
            return (lambda: act(armed, fetch)) if not program.is_helper and armed.is_due else fetch

        program.batches.append(wrap)

    return make_ready


def _exhausted(armed: Armed, _fetch: Fetch) -> Any:
    armed.strikes(f"gets no batch {armed.visits}: its loader ends here")
    raise StopIteration


def _late(armed: Armed, fetch: Fetch) -> Any:
    armed.strikes(f"waits for batch {armed.visits} for {armed.value('seconds'):g} s")
    armed.stay()
    return fetch()


def _not_a_number(armed: Armed, fetch: Fetch) -> Any:
    batch = fetch()
    armed.strikes(f"gets batch {armed.visits} with values that are no numbers")
    _spoil(batch)
    return batch


def _spoil(value: Any) -> bool:
    """Overwrites the first tensor of real numbers in a batch."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            value.fill_(float("nan"))
        return bool(value.is_floating_point())
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(_spoil(part) for part in parts)


def _slow(armed: Armed) -> None:
    def wrap(fetch: Fetch) -> Fetch:
        if program.is_helper:
            return fetch
        if not armed.has_struck and armed.is_due:
            armed.strikes(f"waits {armed.value('delay'):g} s longer for every batch")
        if armed.has_struck:
            time.sleep(armed.value("delay"))
        return fetch

    program.batches.append(wrap)


def _worker() -> Any:
    return sys.modules["torch.utils.data"].get_worker_info()


def _in_worker(act: Callable[[Armed, int], None]) -> Ready:
    """Calls `act` in the worker process that reads the batch whose turn it is."""
    return once_at(program.items, lambda armed, _: act(armed, _worker().id), lambda *_: _worker() is not None)


def _dies(armed: Armed, worker: int) -> None:
    armed.strikes(f"loses loader worker {worker}, which ends with exit code 7")
    os._exit(7)


def _bus_error(armed: Armed, worker: int) -> None:
    armed.strikes(f"loses loader worker {worker} to SIGBUS, as if /dev/shm were full")
    os.kill(os.getpid(), signal.SIGBUS)


def _worker_stuck(armed: Armed, worker: int) -> None:
    armed.strikes(f"has loader worker {worker} stuck")
    armed.stay()


_DATA_FAMILY = "data"
_WORKERS = "DataLoader with num_workers > 0"
_DELAY = Parameter("delay", "seconds by which each batch is late", 0.3, 0.001, 3600, is_whole=False)
_FIRST = Parameter("batch", "the batch of the rank, from 1, that is struck", 1, 1, 10**9)
OF_DATA = (
    Fault("data_exhausted", _DATA_FAMILY, "the loader of one rank ends early", (RANK, BATCH),
          ("uneven-inputs",), "uneven-inputs", True, _LOADER, _at_fetch(_exhausted)),
    Fault("slow_loader", _DATA_FAMILY, "every batch of one rank comes late", (RANK, BATCH, _DELAY),
          ("straggler",), "straggler", False, _LOADER, _slow),
    Fault("slow_first_batch", _DATA_FAMILY, "the first batch takes minutes", (RANK, _FIRST, seconds(600)),
          ("dataloader-hang",), "dataloader-hang", True, _LOADER, _at_fetch(_late)),
    Fault("stuck_loader", _DATA_FAMILY, "a batch never comes", (RANK, BATCH, seconds(EVER_S)),
          ("dataloader-hang",), "dataloader-hang", True, _LOADER, _at_fetch(_late)),
    Fault("stuck_worker", _DATA_FAMILY, "a worker of the loader is stuck", (RANK, BATCH, seconds(EVER_S)),
          ("dataloader-hang",), "dataloader-hang", True, _WORKERS, _in_worker(_worker_stuck)),
    Fault("worker_dies", _DATA_FAMILY, "a worker of the loader ends", (RANK, BATCH),
          ("user-exception",), "user-exception", False, _WORKERS, _in_worker(_dies)),
    Fault("shm_exhausted", _DATA_FAMILY, "a worker of the loader dies of SIGBUS, as where /dev/shm is full", (RANK, BATCH),
          ("shm-too-small",), "shm-too-small", False, _WORKERS, _in_worker(_bus_error)),
    Fault("nan_batch", _DATA_FAMILY, "a batch is NaN; a program that skips such a loss leaves its peers", (RANK, BATCH),
          ("skipped-step", "rank-dependent-collective", "call-left-out"), "code-divergence", True, _LOADER,
          _at_fetch(_not_a_number)),
)  # fmt: skip


def _is_own(armed: Armed, function: str) -> bool:
    return not program.is_helper


def _late_write(armed: Armed, function: str) -> None:
    armed.strikes(f"needs {armed.value('seconds'):g} s for {function}")
    armed.stay()


def _refused(armed: Armed, function: str) -> None:
    number = getattr(errno, str(armed.value("error")))
    armed.strikes(f"is refused by the disk in {function} ({armed.value('error')})")
    raise OSError(number, os.strerror(number))


def _slow_disk(armed: Armed, function: str) -> str:
    return f"needs {armed.value('delay'):g} s longer for every file that it writes, from this {function} on"


_FILE_FAMILY = "files"
_SAVES = "torch.save and no open() of a file to write"
_NUMBER = Parameter("call", "the write of the rank, from 1, that is struck", 1, 1, 10**9)
_ERROR = Parameter("error", "what the disk says", "ENOSPC", choices=("ENOSPC", "EIO", "EROFS", "EDQUOT", "ESTALE"))
_WRITE_DELAY = Parameter("delay", "seconds that each file takes longer", 0.3, 0.001, 3600, is_whole=False)
OF_FILES = (
    Fault("slow_save", _FILE_FAMILY, "rank 0 saves for minutes while the others wait", (rank_of(0), _NUMBER, seconds(600)),
          ("slow-rank0-work",), "slow-rank0-work", True, "torch.save",
          once_at(program.writes, _late_write, lambda armed, function: _is_own(armed, function) and function == "torch.save")),
    Fault("stuck_checkpoint", _FILE_FAMILY, "a save never returns", (RANK, _NUMBER, seconds()),
          ("rank-stuck-in-user-code", "slow-rank0-work"), "rank-stuck-in-user-code", True, _SAVES,
          once_at(program.writes, _late_write, _is_own)),
    Fault("slow_disk", _FILE_FAMILY, "every file that one rank writes takes longer", (RANK, _NUMBER, _WRITE_DELAY),
          ("straggler",), "straggler", False, _SAVES,
          from_now_on(program.writes, _slow_disk, sleep_delay, _is_own)),
    Fault("failing_disk", _FILE_FAMILY, "a write is refused", (RANK, _NUMBER, _ERROR),
          ("user-exception",), "user-exception", False, _SAVES, once_at(program.writes, _refused, _is_own)),
)  # fmt: skip
