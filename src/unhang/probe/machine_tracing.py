"""Whether another process of ours can be looked into from outside, which is how stacks of a stuck rank are taken."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unhang.probe.limited import TookTooLong, limited
from unhang.probe.machine_limits import CAP_SYS_PTRACE, has_capability

_PTRACE_SEIZE, _PTRACE_DETACH = 0x4206, 17
_LIMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Tracing:
    """`scope`: of Yama, None without it. `problem`: why a child of our own cannot be traced; empty: it can."""

    scope: int | None
    has_capability: bool | None
    problem: str


def tracing() -> Tracing:
    """Tries it on a child that does nothing. Blocks up to two seconds.

    Raises:
        OSError: this is not Linux, or the machine is too slow to try.
    """
    if sys.platform != "linux":
        raise OSError("processes are looked into on Linux only")
    try:
        problem = str(limited(_try, _LIMIT_S))
    except (TookTooLong, RuntimeError) as error:
        raise OSError(f"it could not be tried: {error}") from error
    return Tracing(scope(), has_capability(CAP_SYS_PTRACE), problem)


def scope(path: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> int | None:
    """0: any process of ours; 1: descendants and who allows it; 2: with CAP_SYS_PTRACE only; 3: nobody."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _try() -> str:
    """Seizes a child and lets it go; returns what the kernel said against it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    pid = os.fork()
    if pid == 0:
        time.sleep(_LIMIT_S)
        os._exit(0)
    try:
        if libc.ptrace(_PTRACE_SEIZE, pid, None, None) == 0:
            libc.ptrace(_PTRACE_DETACH, pid, None, None)
            return ""
        return os.strerror(ctypes.get_errno())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
