"""numpy, imported at its first use: logs, settings and code are judged without it, and it may not be there."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from unhang.errors import NoNumpy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["has_numpy", "np", "npt", "without_threads"]

_THREADS = "OPENBLAS_NUM_THREADS"
_of_own_process = False


@cache
def has_numpy() -> bool:
    """Whether it is installed; nothing is imported for that."""
    return importlib.util.find_spec("numpy") is not None


def without_threads() -> None:
    """In a process of ours numpy comes without its threads: they cost more to start than the rest, and nothing multiplies matrices."""
    global _of_own_process
    _of_own_process = True


def _imported(name: str) -> Any:
    """Raises NoNumpy: it is not installed."""
    if not has_numpy():
        raise NoNumpy("numpy is not installed here")
    if not _of_own_process or _THREADS in os.environ:
        return importlib.import_module(name)
    os.environ[_THREADS] = "1"
    try:
        return importlib.import_module(name)
    finally:
        del os.environ[_THREADS]


if not TYPE_CHECKING:

    class _AtFirstUse:
        """Stands for a module until something of it is asked for, and keeps what was."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(_imported(self._name), attribute)
            setattr(self, attribute, found)
            return found

    np, npt = _AtFirstUse("numpy"), _AtFirstUse("numpy.typing")
