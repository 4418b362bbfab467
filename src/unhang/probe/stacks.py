"""Stacks of a live process from outside: py-spy, else a real-time signal to faulthandler, which needs no ptrace and no GIL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

STACK_SIGNAL = signal.SIGRTMIN + 5


@cache
def py_spy() -> str | None:
    """The py-spy program beside our interpreter or on the path; `UNHANG_NO_PTRACE` leaves it unused."""
    if os.environ.get("UNHANG_NO_PTRACE"):
        return None
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _start(pid: int, is_stopped: bool) -> subprocess.Popen[bytes] | None:
    program = py_spy()
    if program is None:
        return None
    # A stopped process cannot be paused once more: it is read as it stands.
    how = ["--nonblocking"] if is_stopped else []
    with suppress(OSError):
        return subprocess.Popen(
            [program, "dump", "--json", "--full-filenames", *how, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    return None


def take_stacks(pids: Sequence[int], stopped: Sequence[int] = (), timeout_s: float = 3.0) -> dict[int, list[Any]]:
    """py-spy's threads of each process, all taken at the same time; a process without stacks is left out.

    Blocks: up to `timeout_s`.
    """
    running = {pid: _start(pid, pid in stopped) for pid in pids}
    deadline = time.monotonic() + timeout_s
    found: dict[int, list[Any]] = {}
    for pid, process in running.items():
        if process is None:
            continue
        try:
            out, _ = process.communicate(timeout=max(0.05, deadline - time.monotonic()))
            with suppress(ValueError):
                threads = json.loads(out)
                if isinstance(threads, list) and threads:
                    found[pid] = threads
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    return found


def ask_faulthandler(pids: Sequence[int], wait_s: float = 0.15) -> None:
    """Makes the recorder's faulthandler write all stacks. Only for processes in which it is registered.

    Blocks: `wait_s`.
    """
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, STACK_SIGNAL)
    if pids:
        time.sleep(wait_s)


def listens_to_stack_signal(pid: int) -> bool:
    """Whether a handler for the stack signal is installed; without one the signal would end the process."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = int(next(x for x in lines if x.startswith("SigCgt:")).split()[1], 16)
        return bool(caught >> (STACK_SIGNAL - 1) & 1)
    return False


def wake_sleeper(pid: int) -> None:
    """Interrupts every thread of an aborting process, so that the sleep in its SIGABRT handler ends."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            libc.tgkill(pid, int(task), int(STACK_SIGNAL))
