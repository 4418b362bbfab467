"""Who this process is in the job, how far its training is, and which line of the program is being executed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..rank import RANK, WORLD_SIZE, number_from, with_group

_STDLIB = tuple({os.path.dirname(os.path.abspath(os.__file__)), os.path.dirname(os.path.realpath(os.__file__))})
_FOREIGN = ("/site-packages/", "/dist-packages/", "/unhang/inside/")

steps = 0
"""Optimizer steps that this process has done."""
is_helper = False
"""Whether this process was forked from a rank: a worker of its loader."""
_has_joined = False
_given: tuple[int, int] | None = None


def joined(number: object, size: object) -> None:
    """This process calls init_process_group: it is a rank. Both are -1 where the environment holds them."""
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


def _group() -> Any:
    return None if is_helper else with_group()


def rank() -> int | None:
    """The global rank; 0 in a program that nobody launched; None where only init_process_group will show it."""
    dist = _group()
    if dist is not None:
        return int(dist.get_rank())
    if _given:
        return _given[0]
    number = number_from(RANK)
    return 0 if number is None and number_from(WORLD_SIZE) is None else number


def world_size() -> int:
    """The number of ranks; 1 where it is unknown."""
    dist = _group()
    if dist is not None:
        return int(dist.get_world_size())
    return _given[1] if _given else number_from(WORLD_SIZE) or 1


def is_program(file: str) -> bool:
    """Whether code of this file is the program's own."""
    return not file.startswith(("<", *_STDLIB)) and not any(part in file for part in _FOREIGN)


def program_line() -> tuple[str, int] | None:
    """File and line of the program that the calling thread executes."""
    at: FrameType | None = sys._getframe(1)
    while at is not None:
        if is_program(at.f_code.co_filename):
            return at.f_code.co_filename, at.f_lineno
        at = at.f_back
    return None


def at_line(place: tuple[str, int] | None, action: Callable[[], Any]) -> Any:
    """Calls a function as if that line of the program did, so that stacks and tracebacks show where the fault was put."""
    if place is None:
        return action()
    names: dict[str, Any] = {"action": action}
    exec(compile("\n" * (place[1] - 1) + "result = action()", place[0], "exec", dont_inherit=True), names)
    return names["result"]
