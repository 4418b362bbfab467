"""Faults of the disk: a save that is slow, stuck or refused."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from . import points, rank
from .armed import Armed
from .fault import RANK, Fault, Parameter, rank_of, seconds


def _at_writes(act: Callable[[Armed, str], None], only: str = "") -> Any:
    def make(armed: Armed) -> None:
        def listen(function: str) -> None:
            if not rank.is_helper and function.startswith(only) and armed.is_due:
                act(armed, function)

        points.writes.append(listen)

    return make


def _late(armed: Armed, function: str) -> None:
    armed.strikes(f"needs {armed.value('seconds'):g} s for {function}")
    armed.stay()


def _refused(armed: Armed, function: str) -> None:
    number = getattr(errno, str(armed.value("error")))
    armed.strikes(f"is refused by the disk in {function} ({armed.value('error')})")
    raise OSError(number, os.strerror(number))


def _slow_disk(armed: Armed) -> None:
    def listen(function: str) -> None:
        if rank.is_helper:
            return
        if not armed.has_struck and armed.is_due:
            armed.strikes(
                f"needs {armed.value('delay'):g} s longer for every file that it writes, from this {function} on"
            )
        if armed.has_struck and armed.is_here:
            time.sleep(armed.value("delay"))

    points.writes.append(listen)


_FAMILY = "files"
_SAVES = "torch.save and no open() of a file to write"
_NUMBER = Parameter("call", "the write of the rank, from 1, that is struck", 1, 1, 10**9)
_ERROR = Parameter("error", "what the disk says", "ENOSPC", choices=("ENOSPC", "EIO", "EROFS", "EDQUOT", "ESTALE"))
_DELAY = Parameter("delay", "seconds that each file takes longer", 0.3, 0.001, 3600, is_whole=False)
FAULTS = (
    Fault("slow_save", _FAMILY, "rank 0 saves for minutes while the others wait", (rank_of(0), _NUMBER, seconds(600)),
          ("slow-rank0-work",), "slow-rank0-work", True, "torch.save", _at_writes(_late, "torch.save")),
    Fault("stuck_checkpoint", _FAMILY, "a save never returns", (RANK, _NUMBER, seconds()),
          ("rank-stuck-in-user-code", "slow-rank0-work"), "rank-stuck-in-user-code", True, _SAVES, _at_writes(_late)),
    Fault("slow_disk", _FAMILY, "every file that one rank writes takes longer", (RANK, _NUMBER, _DELAY),
          ("straggler",), "straggler", False, _SAVES, _slow_disk),
    Fault("failing_disk", _FAMILY, "a write is refused", (RANK, _NUMBER, _ERROR),
          ("user-exception",), "user-exception", False, _SAVES, _at_writes(_refused)),
)  # fmt: skip
