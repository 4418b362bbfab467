"""The stacks of living processes by py-spy, which reads them from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_PAUSE_S = 0.05  # before the next try at a process that another one traces; longer each time


@cache
def py_spy() -> str | None:
    """The py-spy program beside our interpreter or on the path; `UNHANG_NO_PTRACE` leaves it unused."""
    if os.environ.get("UNHANG_NO_PTRACE"):
        return None
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _start(pid: int, is_stopped: bool, options: Sequence[str]) -> subprocess.Popen[bytes] | None:
    program = py_spy()
    if program is None:
        return None
    # A stopped process cannot be paused once more: it is read as it stands.
    how = ["--nonblocking"] if is_stopped else []
    with suppress(OSError):
        return subprocess.Popen(
            [program, "dump", "--json", "--full-filenames", *how, *options, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    return None


def take_stacks(
    pids: Sequence[int], stopped: Sequence[int] = (), timeout_s: float = 3.0, options: Sequence[str] = ()
) -> dict[int, list[Any]]:
    """py-spy's threads of each process, all taken at the same time; a process without stacks is left out.

    `options`: more of py-spy's own.

    Blocks: up to `timeout_s`.
    """
    deadline, pause_s = time.monotonic() + timeout_s, _PAUSE_S
    found: dict[int, list[Any]] = {}
    todo = list(pids)
    while todo:
        running = {pid: _start(pid, pid in stopped, options) for pid in todo}
        todo = [
            pid for pid, process in running.items() if process is not None and _is_held(pid, process, deadline, found)
        ]
        if time.monotonic() + pause_s > deadline:
            break
        if todo:
            time.sleep(pause_s)
            pause_s *= 2
    return found


def _is_held(pid: int, process: subprocess.Popen[bytes], deadline: float, found: dict[int, list[Any]]) -> bool:
    """Takes what py-spy tells of a process into `found`; whether it failed since another one traces that process now.

    A process has one tracer at a time, and py-spy holds it for some ten milliseconds: two who look at the same job at the same
    moment meet. Who may open the memory has the right to trace, so that the refusal passes.
    """
    try:
        out, said = process.communicate(timeout=max(0.05, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    with suppress(ValueError):
        threads = json.loads(out)
        if isinstance(threads, list) and threads:
            found[pid] = _with_our_numbers(pid, threads)
    if pid in found or b"EPERM" not in said:
        return False
    with suppress(OSError):
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
        return True
    return False


def _with_our_numbers(pid: int, threads: list[Any]) -> list[Any]:
    """In a container py-spy finds the numbers that threads have there; by ours the main thread is known."""
    if len(_numbers(Path(f"/proc/{pid}"))) < 2:
        return threads
    ours: dict[int, int] = {}
    with suppress(OSError):
        ours = {_numbers(task)[-1]: int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if _numbers(task)}
    numbers = [t.get("os_thread_id") if isinstance(t, dict) else None for t in threads]
    return [{**t, "os_thread_id": ours[n]} if n in ours else t for t, n in zip(threads, numbers, strict=True)]


def _numbers(folder: Path) -> list[int]:
    """Those of a process or thread, from our namespace to its own."""
    with suppress(OSError):
        for line in (folder / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []
