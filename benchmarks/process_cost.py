"""What a command costs with all processes that it starts: wall time, CPU time, peak memory, and what it leaves behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S, _POLL_SHARE, _GRACE_S = 0.02, 0.1, 1.0


@dataclass(frozen=True)
class Cost:
    """CPU is user and system time of the whole tree.

    `peak_bytes`: the largest sum of the proportional set sizes (PSS) of the tree, polled every 20 ms or more, but no less
    than the largest resident set of one process. `left_behind`: processes that outlived the command by a second.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    exit_code: int
    out: str
    err: str
    left_behind: int


def measure(command: Sequence[str | Path], limit_s: float, environment: Mapping[str, str] | None = None) -> Cost | None:
    """Runs the command; None if it did not end within the limit, when all of it is ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become ours, so that they can be counted
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env={**os.environ, **(environment or {})}, start_new_session=True
        )
        done, peak = threading.Event(), [0]
        watcher = threading.Thread(target=_watch, args=(process.pid, done, peak))
        watcher.start()
        late = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        try:
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.monotonic() - began
        finally:
            late.cancel()
            done.set()
            watcher.join()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.returncode = os.waitstatus_to_exitcode(status)
        left_behind, orphans_cpu_s = _end_orphans()
        if wall_s >= limit_s:
            return None
        out.seek(0)
        err.seek(0)
        return Cost(
            wall_s=wall_s,
            cpu_s=used.ru_utime + used.ru_stime + orphans_cpu_s,
            peak_bytes=max(peak[0], used.ru_maxrss * 1024),
            exit_code=process.returncode,
            out=out.read(),
            err=err.read(),
            left_behind=left_behind,
        )


def _watch(root: int, done: threading.Event, peak: list[int]) -> None:
    pause = _POLL_S
    while not done.wait(pause):
        began = time.monotonic()
        peak[0] = max(peak[0], sum(map(_pss, (root, *_descendants(root)))))
        pause = max(_POLL_S, (time.monotonic() - began) / _POLL_SHARE)  # looking at gigabytes holds the process up


def _pss(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, tail = stat.read_text().rpartition(")")
            children.setdefault(int(tail.split()[1]), []).append(int(head.split(" ", 1)[0]))
    found, waiting = [], [root]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def _end_orphans() -> tuple[int, float]:
    """Ends what the command left behind; how many still ran after a moment, and the CPU seconds of all."""
    began, running, cpu_s = time.monotonic(), 0, 0.0
    while orphans := _descendants(os.getpid()):
        is_over = time.monotonic() - began > _GRACE_S
        for pid in orphans:
            if is_over:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                ended, _, usage = os.wait4(pid, 0 if is_over else os.WNOHANG)
                cpu_s += usage.ru_utime + usage.ru_stime if ended else 0
                running += is_over
        time.sleep(_POLL_S)
    return running, cpu_s
