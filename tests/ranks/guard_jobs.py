"""Small jobs for the tests of the guards: a preamble, a body of a few lines, and what each rank said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

LAUNCHER = Path(__file__).parent / "forkrun.py"
LIMIT_S = 50

# `wait_for` lets a rank that is late on purpose come when the others have said what they have to say.
BEGIN = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from unhang.errors import PeerFailed, RanksDiffer
from unhang.guard import job
from unhang.guard.align import align
from unhang.guard.process_group import process_group
from unhang.guard.same import assert_same
from unhang.guard.together import together

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
    """Runs the preamble and the body. Blocks: up to LIMIT_S."""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + textwrap.dedent(body))
    launch = [str(LAUNCHER), "--eager", str(ranks)]
    if launcher == "torchrun":
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *launch, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
