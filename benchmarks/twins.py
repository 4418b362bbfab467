"""Two equal jobs at the same time, taking turns of some steps: what one of them has more, as ratios of neighbouring turns.

The ranks of the job whose turn it is not are stopped (SIGSTOP), so that nothing of theirs goes on in the background while the
other is measured. In a turn of 25 steps a job runs as it would alone. In turns of one step every step begins with caches that
the other job has just filled, and what follows the clock (a thread that wakes every second) counts double: a bound from above.

Who is first changes from turn to turn, so that a machine that becomes slower or quicker meanwhile favours neither. A cycle is
CYCLE steps: what the guards do only now and then by default (replicas are compared every 100 steps, a heartbeat speaks every
50) has its place in it. The cost is the mean, over the places in the cycle, of the median over the cycles at that place: no such
place is left out, and no single disturbance counts. Its interval comes from cycles that are drawn again, with replacement:
whole ones, since steps of one turn share the machine's mood.
What comes at no fixed place is in the ratio of whole cycles, whose interval is wide on such a machine, and in the CPU time.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from step_program import CALLS_EVERY, TURN

HERE = Path(__file__).parent
SCRIPTS = Path(sys.executable).parent
RANKS, CYCLE, WARM_UP, PER_TURN = 2, 100, 2, 25
_REDRAWN = 2000
START_LIMIT_S, STEP_LIMIT_S = 120.0, 60.0
TICKS = os.sysconf("SC_CLK_TCK")
Series = npt.NDArray[np.float64]
Summary = dict[str, float | list[float]]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Job:
    """One of the twins, and the pipes by which its ranks take turns with those of the other."""

    def __init__(self, out: Path, command: Sequence[str | Path]) -> None:
        pipes = [f"{out}.turns.{rank}" for rank in range(RANKS)]
        self._go = [self._pipe(f"{name}.go") for name in pipes]
        self._done = [self._pipe(f"{name}.done") for name in pipes]
        self._ranks: list[int] = []
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.out, self.errors = out, out.with_suffix(".errors")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)

    @staticmethod
    def _pipe(name: str) -> int:
        os.mkfifo(name)
        return os.open(name, os.O_RDWR)

    def turn(self) -> None:
        """Lets its ranks do the steps of one turn.

        Raises:
            RuntimeError: as for `wait`.
        """
        self._signal(signal.SIGCONT)
        for pipe in self._go:
            os.write(pipe, b"!")
        self.wait(STEP_LIMIT_S)
        self._signal(signal.SIGSTOP)

    def wait(self, limit_s: float) -> None:
        """Until all ranks have done their steps.

        Raises:
            RuntimeError: the job has ended, or the limit is over.
        """
        until = time.monotonic() + limit_s
        self._ranks = []
        for pipe in self._done:
            while not select.select([pipe], [], [], 1)[0]:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no step within {limit_s:g} s, exit code {self.process.poll()}: {self.said()}")
            self._ranks.append(TURN.unpack(os.read(pipe, TURN.size))[0])

    def _signal(self, number: int) -> None:
        for pid in self._ranks:
            os.kill(pid, number)

    def said(self) -> str:
        """The end of its standard error."""
        return self.errors.read_text(errors="replace")[-2000:]

    def go_on(self) -> None:
        """Lets its ranks end."""
        with suppress(ProcessLookupError):
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends it, where it has not ended, and the pipes."""
        self.go_on()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        for pipe in (*self._go, *self._done):
            os.close(pipe)


def start(out: Path, steps: int, per_turn: int, with_it: bool, what: str, sleeps: bool, guards: Sequence[str]) -> Job:
    """Starts one of the twins, with or without `what`: "run" (under `unhang run`), "guards", or "null", nothing."""
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    program = [HERE / "step_program.py", out, str(steps), f"{out}.turns", str(per_turn)]
    command = [SCRIPTS / "torchrun", *address, "--nproc-per-node", str(RANKS), *program]
    command += ["--sleeps"] if sleeps else []
    if with_it and what == "guards":
        command += ["--guards", *guards]
    if with_it and what == "run":
        options = ["-q", "--report-dir", out.with_name("report"), "--join", f"127.0.0.1:{free_port()}"]
        command = [SCRIPTS / "unhang", "run", *options, "--", *command]
    return Job(out, command)


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
    cycles: int,
    what: str,
    sleeps: bool,
    guards: Sequence[str] = (),
    is_cut: Callable[[], bool] = lambda: False,
    per_turn: int = PER_TURN,
) -> dict[str, Summary]:
    """Ratios, extra microseconds per step and per small all-reduce, and for "run" the CPU share of our own processes.

    Args:
        cycles: that are measured, after WARM_UP others.
        what: as in `start`.
        sleeps: whether a step sleeps instead of computing.
        guards: those that are wanted; all by default.
        is_cut: once it says so, the jobs are ended, and what they have measured so far counts.
        per_turn: steps of a turn; it divides CYCLE.

    Raises:
        RuntimeError: one of the jobs failed, or does not go on.
    """
    with tempfile.TemporaryDirectory() as name:
        steps = (cycles + WARM_UP) * CYCLE
        jobs = [
            start(Path(name) / own, steps, per_turn, own == "with", what, sleeps, guards) for own in ("without", "with")
        ]
        try:
            for job in jobs:
                job.wait(START_LIMIT_S)
            before = own_cpu_s(jobs[1].process.pid), time.monotonic()
            for turn in range(steps // per_turn):
                if is_cut():
                    break
                for job in jobs if turn % 2 else reversed(jobs):
                    job.turn()
            share = (own_cpu_s(jobs[1].process.pid) - before[0]) / (time.monotonic() - before[1])
            for job in jobs:
                job.go_on()
            if not is_cut():
                for job in jobs:
                    job.process.wait(STEP_LIMIT_S)
        finally:
            for job in jobs:
                job.end()
        if failed := [job.said() for job in jobs if job.process.returncode and not is_cut()]:
            print(f"{what}: measured, but the job then failed: {failed[0]}", file=sys.stderr)
        measured = [json.loads(job.out.read_text()) if job.out.exists() else {} for job in jobs]
    found = _compared(*({key: np.array(values) for key, values in of.items()} for of in measured))
    return {**found, "own_cpu_share": {"median": share, "n": 1}} if what == "run" and found else found


def _compared(plain: dict[str, Series], more: dict[str, Series]) -> dict[str, Summary]:
    """The one beside the other, without the warm-up; nothing where there are fewer than two cycles."""
    cycles = min((len(of.get("step_s", ())) // CYCLE for of in (plain, more)), default=0) - WARM_UP
    if cycles < 2:
        return {}

    def pairs(key: str, per_cycle: int) -> tuple[Series, Series]:
        """With, and without: by cycle and place in it."""
        measured = slice(WARM_UP * per_cycle, (WARM_UP + cycles) * per_cycle)
        return more[key][measured].reshape(cycles, -1), plain[key][measured].reshape(cycles, -1)

    (step, other), (cpu, other_cpu) = pairs("step_s", CYCLE), pairs("cpu_s", CYCLE)
    call, other_call = pairs("call_s", CYCLE // CALLS_EVERY)
    return {
        "step_ms": summary(1e3 * other.mean(axis=1)),
        "ratio": by_place(step, other, is_ratio=True),
        "cycle_ratio": summary(step.mean(axis=1) / other.mean(axis=1)),
        "cpu_ratio": by_place(cpu, other_cpu, is_ratio=True),
        "extra_cpu_us": by_place(1e6 * cpu, 1e6 * other_cpu),
        "extra_us": summary(1e6 * (call - other_call).ravel()),
    }


def by_place(found: Series, other: Series, is_ratio: bool = False) -> Summary:
    """The mean over the places in a cycle of the median difference at that place, with its 95 % interval.

    Args:
        found: by cycle and place.
        other: the same of the twin, in the turn beside it.
        is_ratio: to the typical step of the twin: how many of its steps one step is.
    """
    more = found - other
    draw = np.random.default_rng(0)
    again = (more[draw.integers(len(more), size=len(more))] for _ in range(_REDRAWN))
    ends = np.quantile([np.median(one, axis=0).mean() for one in again], (0.025, 0.975))
    middle = float(np.median(more, axis=0).mean())
    unit, zero = (float(np.median(other, axis=0).mean()), 1.0) if is_ratio else (1.0, 0.0)
    quartiles = np.quantile(found / other if is_ratio else more, (0.25, 0.75)).tolist()
    return {
        "median": zero + middle / unit, "interval": (zero + ends / unit).tolist(), "quartiles": quartiles, "n": found.size,
    }  # fmt: skip


def around_median(n: int) -> tuple[int, int]:
    """Between these two of n ordered values lies the true median, with 95 % confidence, whatever the distribution."""
    away = 0.98 * math.sqrt(n)
    return max(0, math.floor(n / 2 - away)), min(n - 1, math.ceil(n / 2 + away))


def summary(found: Sequence[float] | Series) -> Summary:
    """Median with its interval, quartiles and number."""
    values = sorted(float(value) for value in found)
    lower, middle, upper = statistics.quantiles(values, n=4)
    low, high = around_median(len(values))
    return {"median": middle, "interval": [values[low], values[high]], "quartiles": [lower, upper], "n": len(values)}
