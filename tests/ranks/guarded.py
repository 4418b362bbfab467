"""Runs small guarded jobs of a few ranks, given as program text, and looks at what they leave behind."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests import warm
from tests.ports import free_port

from .harness import _TOKEN, _communicate, _kill, _survivors

# The ordinary launcher ends the other ranks half a second after the first failure; this one lets them speak.
PATIENT = ("--grace", "40")


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    exit_code: int
    out: str
    err: str
    seconds: float
    ended_at: float = 0.0

    def __str__(self) -> str:
        kept = [line for line in self.err.splitlines() if not line.startswith(("frame #", "[W", "Exception raised"))]
        return f"exit code {self.exit_code} after {self.seconds:.1f} s\n{self.out}\n" + "\n".join(kept)[-6000:]


def run(
    program: str,
    tmp_path: Path,
    *arguments: str,
    ranks: int = 2,
    launcher: str = "patient",
    limit_s: float = 45,
    environment: dict[str, str] | None = None,
) -> Ended:
    """Runs the program under a launcher: fork, patient, hosted (patient, rank 0 hosts the store), torchrun, or none.

    `{port}` among the arguments becomes a port that must be free again at the end. `ended_at`: when the launcher ended.

    Blocks: up to `limit_s`. Raises: AssertionError if it takes longer, or leaves a process, a port or shared memory behind.
    """
    script = tmp_path / "train.py"
    script.write_text(program)
    port, token, before = free_port(), uuid.uuid4().hex, _shared_memory()
    command = {
        "fork": warm.forkrun("--eager", ranks),
        "patient": warm.forkrun(*PATIENT, "--eager", ranks),
        "hosted": warm.forkrun(*PATIENT, "--eager", "--port", port, ranks),
        "torchrun": [*_torchrun(port), f"--nproc-per-node={ranks}"],
        "none": [sys.executable],
    }[launcher]
    started = time.monotonic()
    process = warm.popen(
        [*command, str(script), *(argument.format(port=port) for argument in arguments)],
        tmp_path,
        {**_environment(), **(environment or {}), _TOKEN: token},
    )
    ended_at = _end_of(process)
    out, err = _communicate(process, token, limit_s)
    ended = Ended(process.returncode or 0, out, err, time.monotonic() - started, ended_at())
    left = _survivors(token, process)
    warm.end(process)
    _kill(left)
    assert not left, f"processes survive: {left}\n{ended}"
    assert not listens(port), f"something still listens on port {port}\n{ended}"
    assert not _shared_memory() - before, f"shared memory is left behind\n{ended}"
    return ended


def _end_of(process: warm.Job) -> Callable[[], float]:
    """What returns when the launcher ended. Blocks: until it did."""
    if isinstance(process, warm.WarmJob):
        return lambda: process.ended_at
    found: list[float] = []
    waiter = threading.Thread(target=lambda: found.append((process.wait(), time.time())[1]))
    waiter.start()
    return lambda: (waiter.join(), found[0])[1]


def _environment() -> dict[str, str]:
    """Ours, with lines that are written whole: those of several ranks come through one pipe."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**kept, "PYTHONFAULTHANDLER": "1"}


def _torchrun(port: int) -> list[str]:
    options = ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--monitor-interval=0.1"]
    return [sys.executable, "-m", "torch.distributed.run", *options]


def _shared_memory() -> set[str]:
    """What torch left there (`torch_PID_...`) when a process ended badly; what belongs to a living one is in use."""
    found = {path.name for path in Path("/dev/shm").glob("torch_*")}
    return {name for name in found if not Path("/proc", name.split("_")[1]).exists()}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
