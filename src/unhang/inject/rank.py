"""Who this process is in the job, how far its training is, and which line of the program is being executed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
WORLD_SIZE_NAMES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_STDLIB = tuple({os.path.dirname(os.path.abspath(os.__file__)), os.path.dirname(os.path.realpath(os.__file__))})
_FOREIGN = ("/site-packages/", "/dist-packages/", "/unhang/inject/", "/unhang/recorder/", "/unhang/guard/")

steps = 0
"""Optimizer steps that this process has done."""
is_helper = False
"""Whether this process was forked from a rank: a worker of its loader."""
_has_joined = False
_given: tuple[int, int] | None = None


def joined(number: object, size: object) -> None:
    """This process calls init_process_group: it is a rank. Both are -1 where the environment tells them."""
    global is_helper, _has_joined, _given
    is_helper, _has_joined = False, True
    if isinstance(number, int) and isinstance(size, int) and 0 <= number < size:
        _given = number, size


def forked() -> None:
    """This process has just been forked."""
    global is_helper, _has_joined
    is_helper, _has_joined = is_helper or _has_joined, False


def count_step() -> None:
    """The optimizer has done a step."""
    global steps
    steps += 1


def _first_int(names: tuple[str, ...]) -> int | None:
    return next((int(t) for t in (os.environ.get(n, "").strip() for n in names) if t.isdigit()), None)


def rank() -> int | None:
    """The global rank; 0 in a program that nobody launched; None where only init_process_group will tell."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and not is_helper and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    if _given:
        return _given[0]
    told = _first_int(RANK_NAMES)
    return 0 if told is None and _first_int(WORLD_SIZE_NAMES) is None else told


def world_size() -> int:
    """The number of ranks; 1 where nothing tells it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and not is_helper and dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    return _given[1] if _given else _first_int(WORLD_SIZE_NAMES) or 1


def is_program(file: str) -> bool:
    """Whether code of this file is the program's own."""
    return not file.startswith(("<", *_STDLIB)) and not any(part in file for part in _FOREIGN)


def program_line(frame: FrameType | None = None) -> tuple[str, int] | None:
    """File and line of the program that the calling thread executes."""
    at: FrameType | None = frame or sys._getframe(1)
    while at is not None:
        if is_program(at.f_code.co_filename):
            return at.f_code.co_filename, at.f_lineno
        at = at.f_back
    return None


def at_line(place: tuple[str, int] | None, action: Callable[[], Any]) -> Any:
    """Calls a function as if that line of the program did, so that stacks and tracebacks tell where the fault was put."""
    if place is None:
        return action()
    names: dict[str, Any] = {"action": action}
    exec(compile("\n" * (place[1] - 1) + "result = action()", place[0], "exec", dont_inherit=True), names)
    return names["result"]
