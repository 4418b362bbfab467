"""Real jobs of a few ranks, started without `unhang`: forked by the warm launcher, or by plain python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import warm
from tests.slowness import slowness
from unhang.attach import Wish, attach, jobs_wanted
from unhang.diagnosis import Judged
from unhang.model import Outcome

BEGIN = """
import os, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

def ready():
    Path(f"ready-{rank}").write_text("")

def step():
    dist.all_reduce(torch.ones(4))

step()
"""


@contextmanager
def running(folder: Path, program: str, ranks: int = 3) -> Iterator[tuple[warm.Job, Path]]:
    """A job whose ranks have all called `ready()`; every process of it is ended afterwards."""
    script = folder / "job.py"
    script.write_text(BEGIN + program)
    job = warm.popen(warm.forkrun("--eager", ranks, script), folder)
    try:
        wait_until(lambda: all((folder / f"ready-{r}").exists() for r in range(ranks)), 30)
        yield job, script
    finally:
        warm.end(job)


def wait_until(is_so: Callable[[], bool], limit_s: float) -> None:
    """Blocks: up to `limit_s` on a quiet machine. Raises: TimeoutError."""
    deadline = time.monotonic() + limit_s * slowness()
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def look(pid: int, folder: Path, for_s: float = 2.0) -> Judged:
    """What `unhang attach PID` judges."""
    wish = Wish(str(pid), for_s=for_s * slowness())
    (job,), processes = jobs_wanted(wish)
    return attach(job, processes, folder / "looked" / "bundle", wish)


def culprits(judged: Judged) -> tuple[Outcome, Sequence[int], int | None]:
    """The outcome, who is accused first, and the line."""
    found = judged.diagnosis.findings[:1]
    line = found[0].location.line if found and found[0].location else None
    return judged.diagnosis.outcome, found[0].culprit_ranks if found else (), line


def line_of(script: Path, text: str) -> int:
    """The number of the one line that holds a text."""
    (number,) = [i for i, line in enumerate(script.read_text().splitlines(), 1) if text in line]
    return number
