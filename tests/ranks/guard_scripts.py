"""Runs a script that a test has written down as a real job of a few ranks."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from tests import warm
from tests.slowness import slowness


@dataclass(frozen=True)
class Ended:
    """A job that has ended; `is_ours`: because the limit was over."""

    code: int
    out: str
    err: str
    seconds: float
    was_ended: bool

    def said(self, rank: int) -> list[str]:
        """What `say` printed on this rank."""
        return [line.removeprefix(f"<{rank}> ") for line in self.out.splitlines() if line.startswith(f"<{rank}> ")]

    def __str__(self) -> str:
        how = "hung" if self.was_ended else f"exit code {self.code}"
        return f"{how} after {self.seconds:.1f} s\n{self.out[-3000:]}\nstderr:\n{self.err[-6000:]}"


BEGIN = """
import os, sys, time, threading
from datetime import timedelta
import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def say(*words):
    sys.stdout.write(f"<{rank}> {' '.join(map(str, words))}\\n")
    sys.stdout.flush()

def begin(timeout_s=30):
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))

"""


def run(folder: Path, body: str, ranks: int = 3, *arguments: str, limit_s: float = 45) -> Ended:
    """Runs the script on so many ranks; ends the job after `limit_s`."""
    script = folder / "script.py"
    script.write_text(BEGIN + textwrap.dedent(body))
    return ended(warm.forkrun("--eager", ranks, script, *arguments), limit_s)


def ended(command: list[str], limit_s: float) -> Ended:
    """Runs a launcher, and ends it with all its ranks after `limit_s`."""
    started = time.monotonic()
    process = warm.popen(command, Path.cwd())
    was_ended = False
    try:
        out, err = process.communicate(timeout=limit_s * slowness())
    except subprocess.TimeoutExpired:
        was_ended = True
        process.send_signal(signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=8 * slowness())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=5 * slowness())
    warm.end(process)
    return Ended(process.returncode or 0, out, err, time.monotonic() - started, was_ended)


def example_of(documented: object) -> str:
    """The example in a docstring, as it stands there."""
    found = re.search(r"```python\n(.*?)```", inspect.getdoc(documented) or "", re.DOTALL)
    assert found is not None
    return textwrap.dedent(found[1])
