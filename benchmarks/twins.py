"""Two equal jobs at the same time, taking turns block by block: what one of them has more, as ratios of neighbouring blocks.

Each block of the one is compared with the mean of the other's blocks just before and after it, so that a machine that becomes
slower or quicker does not count for either. A pair is TOGETHER such blocks, and a ratio that of their sums: so many steps that
what the guards do only now and then by default (replicas are compared every 100 steps, a heartbeat speaks every 50) lies in each
pair as often as in a training, and no median over pairs leaves it out; in short turns, since a machine changes within seconds.
"""

from __future__ import annotations

import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = Path(sys.executable).parent
RANKS, TOGETHER, WARM_UP, LIMIT_S = 2, 4, 2, 3600.0
TICKS = os.sysconf("SC_CLK_TCK")
Series = dict[str, list[float]]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    folder: Path, blocks: int, own: str, other: str, what: str, sleeps: bool, guards: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Starts one of the twins; `watched` is the one that has `what`: "run" (under `unhang run`), "guards", or "null", nothing."""
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    program = [HERE / "step_program.py", folder / own, str(blocks), own, other, folder / "turn"]
    command = [SCRIPTS / "torchrun", *address, "--nproc-per-node", str(RANKS), *program]
    command += ["--sleeps"] if sleeps else []
    if own == "watched":
        command += ["--guards", *guards] if what == "guards" else []
        if what == "run":
            command = [SCRIPTS / "unhang", "run", "-q", "--report-dir", folder / "report", "--", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def own_cpu_s(root: int) -> float:
    """CPU seconds of the process `root` and its children that are unhang's own, not the job's."""
    total = 0.0
    names = {"unhang-watcher", "unhang-relay"}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
        except OSError:
            continue
        pid, name, fields = int(head.split(" ", 1)[0]), head.split("(", 1)[1], tail.split()
        if pid == root or (name in names and int(fields[1]) == root):
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def measure(
    pairs: int, what: str, sleeps: bool, guards: Sequence[str] = (), is_cut: Callable[[], bool] = lambda: False
) -> dict[str, list[float]]:
    """Ratios per pair, extra microseconds per small all-reduce, and for "run" the CPU share of our own processes.

    Args:
        pairs: that are measured, after WARM_UP others.
        what: as in `start`.
        sleeps: whether a step sleeps instead of computing.
        guards: those that are wanted; all by default.
        is_cut: once it says so, the jobs are ended, and what they have measured so far counts.

    Raises:
        RuntimeError: one of the jobs failed, or took longer than LIMIT_S.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "turn").write_text("plain")
        names = (("plain", "watched"), ("watched", "plain"))
        blocks = (pairs + WARM_UP) * TOGETHER + 1
        jobs = {own: start(folder, blocks, own, other, what, sleeps, guards) for own, other in names}
        shares, before, until = [], None, time.monotonic() + LIMIT_S
        try:
            while any(job.poll() is None for job in jobs.values()) and not is_cut():
                time.sleep(1)
                if not is_cut() and (any(job.poll() for job in jobs.values()) or time.monotonic() > until):
                    raise RuntimeError(f"{what}: the jobs ended with {[job.poll() for job in jobs.values()]}")
                now = (time.monotonic(), own_cpu_s(jobs["watched"].pid) if what == "run" else 0.0)
                if before is not None and now[1] > 0:
                    shares.append((now[1] - before[1]) / (now[0] - before[0]))
                before = now
        finally:
            for job in jobs.values():
                if job.poll() is None:
                    job.terminate()
                    job.wait(60)
        plain, watched = (json.loads(path.read_text()) if (path := folder / own).exists() else {} for own in jobs)
    series = ("step_s", "cpu_s", "call_s")
    blocks = min(len(of.get(key, ())) for of in (plain, watched) for key in series)
    return {**_compared(plain, watched, blocks), "own_cpu_share": [share for share in shares[3:-2] if share >= 0]}


def _compared(plain: Series, watched: Series, blocks: int) -> Series:
    """The one beside the other; nothing where there are too few blocks."""
    pairs = [range(first, first + TOGETHER) for first in range(WARM_UP * TOGETHER, blocks - TOGETHER, TOGETHER)]
    if not pairs:
        return {}

    def sums(key: str) -> list[tuple[float, float]]:
        """Of each pair: with, and without."""
        return [(sum(watched[key][i] for i in pair), sum(neighbours(plain[key], i) for i in pair)) for pair in pairs]

    return {
        "step_ms": [1e3 * without / TOGETHER for _, without in sums("step_s")],
        "call_us": [1e6 * without / TOGETHER for _, without in sums("call_s")],
        "ratio": [more / without for more, without in sums("step_s")],
        "cpu_ratio": [more / without for more, without in sums("cpu_s")],
        "extra_us": [1e6 * (more - without) / TOGETHER for more, without in sums("call_s")],
        "extra_cpu_us": [1e6 * (more - without) / TOGETHER for more, without in sums("cpu_s")],
    }


def neighbours(series: Sequence[float], index: int) -> float:
    """The mean of the twin's blocks just before and just after."""
    return (series[index] + series[index + 1]) / 2


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Between these lies the true median, with 95 % confidence, whatever the distribution (order statistics)."""
    ordered, n = sorted(values), len(values)
    away = 0.98 * math.sqrt(n)
    return ordered[max(0, math.floor(n / 2 - away))], ordered[min(n - 1, math.ceil(n / 2 + away))]


def summary(values: Sequence[float]) -> dict[str, float | list[float]]:
    """Median with its interval, quartiles and number."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "interval": list(interval(values)), "quartiles": [low, high], "n": len(values)}
