"""Small jobs for the tests of the guards: a preamble, a body of a few lines, and what each rank said."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from tests import warm
from tests.slowness import slowness

LIMIT_S = 50

# `wait_for` lets a rank that is late on purpose come when the others have said what they have to say.
BEGIN = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards import job
from unhang.inside.guards.align import align
from unhang.inside.guards.process_group import process_group
from unhang.inside.guards.agreement import assert_same
from unhang.inside.guards.agreement import together

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def begin(timeout_s=3):
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))

def step(value=1.0):
    total = torch.tensor([float(value)])
    dist.all_reduce(total)
    return total.item()

def say(*words):
    sys.stdout.write(f"<{rank}> {' '.join(map(str, words))}\\n")
    sys.stdout.flush()

def write(word):
    Path(f"{word}-{rank}").touch()

def wait_for(word, *ranks):
    until = time.monotonic() + 30
    while time.monotonic() < until and not all(Path(f"{word}-{r}").exists() for r in ranks or range(world)):
        time.sleep(0.05)

def end():
    dist.barrier()
    job.use(None)
    dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def said(self, rank: int) -> list[str]:
        return re.findall(rf"^<{rank}> (.*)$", self.stdout, re.MULTILINE)

    def said_by_all(self, ranks: int) -> str:
        """What each of the ranks said, if it is the same."""
        words = {tuple(self.said(rank)) for rank in range(ranks)}
        assert len(words) == 1, self
        return "\n".join(words.pop())


def run(tmp_path: Path, ranks: int, body: str, launcher: str = "fork") -> Ended:
    """Runs the preamble and the body. Blocks: up to LIMIT_S, longer on a busy machine."""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + textwrap.dedent(body))
    command = warm.forkrun("--eager", ranks)
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    started = time.monotonic()
    done = warm.run([*command, str(script)], tmp_path, LIMIT_S * slowness(), {**os.environ, "OMP_NUM_THREADS": "1"})
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
