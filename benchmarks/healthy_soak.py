"""Healthy jobs of the kinds that look like a hang, under an impatient `unhang run`: is one ended, a rank accused, evidence lost?

Rank 0 works alone for long, with a moving CPU; a long first step; slow writers at the exit; two agents with one report folder, each
seeing one rank; a run inside a run; and jobs ended from outside (Ctrl-C, SIGTERM) at a random moment. A job counts as

* ended: `unhang` ended it, or it has another exit code than it would have without;
* accused: a finding names a rank, or its outcome is hang, crash or straggler;
* lost: an agent left no report, or a rank's evidence is not in the bundle.

Usage: python benchmarks/healthy_soak.py [--jobs 48] [--at-once 2] [--seed 0] [--stall-after 3] [--only KIND]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests/ranks/programs"
FORK = [sys.executable, str(ROOT / "tests/ranks/forkrun.py")]
UNHANG = [sys.executable, "-m", "unhang"]
LIMIT_S = 180
ACCUSED = ("hang", "crash", "straggler")
LEFT = "unhang-reports"


@dataclass(frozen=True)
class Job:
    """One job: how it is started by each of its agents, and how it ends by itself or by a signal."""

    kind: str
    commands: Sequence[Sequence[str]]
    ranks: int
    signal_after_s: float | None = None
    signo: int = signal.SIGINT
    to_group: bool = False
    environments: Sequence[dict[str, str]] = ({},)


@dataclass
class Seen:
    """What became of it. Each list holds one sentence for each time that it went wrong."""

    job: Job
    seconds: float = 0.0
    suspected: bool = False
    ended: list[str] = field(default_factory=list)
    accused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def forked(ranks: int, program: str, *arguments: str) -> list[str]:
    """A job of forked ranks."""
    return [*FORK, str(ranks), str(PROGRAMS / program), *arguments]


def make(kind: str, draw: random.Random, run: Sequence[str]) -> Job:
    """A job of this kind, with what is by chance about it drawn."""
    seconds, ranks = f"{draw.uniform(6, 15):.1f}", draw.choice((2, 4))
    match kind:
        case "rank 0 works":
            return Job(kind, [[*run, *forked(ranks, "rank0_prepares.py", seconds)]], ranks)
        case "long first step":
            return Job(kind, [[*run, *forked(4, "long_first_step.py")]], 4)
        case "slow writers":
            return Job(kind, [[*run, *forked(ranks, "slow_writers.py", seconds)]], ranks)
        case "two agents":
            return two_agents(kind, draw, run, seconds)
        case "run in a run":
            return Job(kind, [[*run, *run, *forked(ranks, "rank0_prepares.py", seconds)]], ranks)
        case "ended from outside":
            signo = draw.choice((signal.SIGINT, signal.SIGTERM))
            command = [*run, *forked(ranks, "steps.py", "40")]
            return Job(kind, [command], ranks, draw.uniform(3, 12), signo, draw.random() < 0.5)
    raise ValueError(kind)


def two_agents(kind: str, draw: random.Random, run: Sequence[str], seconds: str) -> Job:
    """Two agents that see one rank each, as under `srun unhang run -- python train.py`, with one report folder."""
    port = str(draw.randrange(20_000, 30_000))
    given = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "UNHANG_REPORT_DIR": LEFT}
    each = [{**given, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    program = [sys.executable, str(PROGRAMS / "rank0_prepares.py"), seconds]
    return Job(kind, [[*run, *program]] * 2, 2, environments=each)


KINDS = ("rank 0 works", "long first step", "slow writers", "two agents", "run in a run", "ended from outside")


def watch(job: Job) -> Seen:
    """Runs it, and reads what was left. Blocks: up to LIMIT_S."""
    seen, began = Seen(job), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unhang-soak-") as folder:
        processes = [start(c, Path(folder), env) for c, env in zip(job.commands, job.environments, strict=True)]
        if job.signal_after_s is not None:
            time.sleep(job.signal_after_s)
            (os.killpg if job.to_group else os.kill)(processes[0].pid, job.signo)
        for process in processes:
            judge_end(seen, process)
        seen.seconds = time.monotonic() - began
        judge_reports(seen, Path(folder) / LEFT)
    return seen


def start(command: Sequence[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """An agent with its part of the job."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def judge_end(seen: Seen, process: subprocess.Popen[str]) -> None:
    """Whether it ended as it would have without us."""
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        seen.ended.append(f"no end within {LIMIT_S} s")
        return
    seen.suspected = seen.suspected or bool(re.search(r"^STALLED", said, re.MULTILINE))
    if "ending it" in said:
        seen.ended.append("unhang ended it")
    is_ended_from_outside = seen.job.signal_after_s is not None
    if process.returncode != 0 and not is_ended_from_outside:
        seen.ended.append(f"exit code {process.returncode}: {said[-300:]}")
    if re.search(r"^HANG", said, re.MULTILINE):
        seen.accused.append("it was called a hang while it ran")


def judge_reports(seen: Seen, reports: Path) -> None:
    """What the reports say, and whether the evidence of all ranks is there."""
    written = sorted(reports.rglob("report.json"))
    ranks = {int(folder.name[1:].split("-")[0]) for folder in reports.rglob("ranks/r*-*")}
    if len(written) < len(seen.job.commands):
        seen.lost.append(f"{len(written)} reports of {len(seen.job.commands)} agents")
    if ranks != set(range(seen.job.ranks)):
        seen.lost.append(f"evidence of ranks {sorted(ranks)} of {seen.job.ranks}")
    for path in written:
        report = json.loads(path.read_bytes())
        named = [f["title"] for f in report["findings"] if f["culprit_ranks"]]
        seen.accused += named
        if report["outcome"] in ACCUSED and not named:
            seen.accused.append(f"outcome {report['outcome']}: {[f['title'] for f in report['findings']]}")


def main() -> int:
    """Prints a line a job, and the sums; exit code 1 if anything went wrong."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--jobs", type=int, default=48)
    options.add_argument("--at-once", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--stall-after", type=float, default=3.0, help="0: the adaptive limit")
    options.add_argument("--only", default="")
    given = options.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # a script's background ignores some, and so would every job
    run = [*UNHANG, "run", *(["--stall-after", f"{given.stall_after:g}"] if given.stall_after else []), "--"]
    draw = random.Random(given.seed)
    kinds = [kind for kind in KINDS if given.only in kind]
    jobs = [make(kinds[number % len(kinds)], draw, run) for number in range(given.jobs)]
    found: list[Seen] = []
    with ThreadPoolExecutor(given.at_once) as pool:
        for seen in pool.map(watch, jobs):
            found.append(seen)
            wrong = [*seen.ended, *seen.accused, *seen.lost]
            note = "; ".join(wrong) or ("suspected, and taken back" if seen.suspected else "well")
            print(f"{len(found):3} {seen.job.kind:20} {seen.job.ranks} ranks {seen.seconds:6.1f} s  {note}", flush=True)
    sums = {
        "jobs": len(found),
        "suspected": sum(seen.suspected for seen in found),
        "ended": sum(bool(seen.ended) for seen in found),
        "accused": sum(bool(seen.accused) for seen in found),
        "lost": sum(bool(seen.lost) for seen in found),
    }
    print(", ".join(f"{name} {count}" for name, count in sums.items()))
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "healthy_soak.json").write_text(json.dumps({**sums, "options": vars(given)}, indent=1) + "\n")
    return 1 if sums["ended"] or sums["accused"] or sums["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
