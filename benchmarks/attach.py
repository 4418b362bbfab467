"""`unhang attach` on jobs of plain torchrun: is the rank named, and the line; is a healthy job accused; what does it cost a step?

A fault counts as

* named: the verdict is STALLED and its first finding has the right ranks (and the right line);
* said: the verdict is UNKNOWN, nobody is accused, and it says that the others wait for the right ranks (and where these are);
* wrong: a finding accuses a rank that is innocent.

Without the flight recorder: torch writes its dumps for NCCL alone, and these jobs use gloo. With it (`--recorder`): each rank has torch's
own worker server at a unix socket (`torch.distributed.elastic.control_plane`), which answers for gloo, too.

Usage: python benchmarks/attach.py [--recorder] [--only NAME] [--turns 3] [--write FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.ranks.faults import HANGS, Case  # noqa: E402

from unhang.attach import Wish, attach, jobs_wanted  # noqa: E402
from unhang.diagnosis import Judged  # noqa: E402
from unhang.model import user_frames  # noqa: E402
from unhang.watch.process_tree import descendants_of  # noqa: E402

FAULTS = (
    "conditional_collective", "skipped_step", "swallowed_exception", "subgroup_not_created_by_all", "uneven_batches",
    "two_groups_opposite_order", "two_threads_one_group", "p2p_recv_cycle", "p2p_wrong_peer", "slow_rank0_save",
    "slow_rank0_eval", "lock_deadlock", "queue_get_forever", "event_wait", "endless_python_loop", "regex_backtracking",
    "dataloader_worker_stuck", "sigstop", "rendezvous_incomplete", "shutdown_hang",
)  # fmt: skip
HEALTHY = ("slow_step", "rank0_work", "small_group", "loader", "sleeps", "big_reduce", "slow_rank")
RECORDER = False
PROGRAMS = Path(__file__).parent / "attach_jobs"
RANKS, START_S, SETTLE_S, MOST_TRIES, ATTACHES = 4, 240.0, 6.0, 5, 10
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


@dataclass
class Row:
    """What was said of one job."""

    name: str
    word: str
    how: str
    ranks: list[int]
    line: str
    right_ranks: bool
    right_line: bool
    seconds: float


@contextmanager
def torchrun(program: Path, *arguments: str, ranks: int = RANKS) -> Iterator[int]:
    """The pid of a plain torchrun whose ranks have all started; every process of it is ended afterwards, by its pid."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            launch = [*TORCHRUN, str(ranks), "--master-port", str(probe.getsockname()[1])]
        command = [*launch, str(program), *arguments]
        if RECORDER:
            set_socket = f'export TORCH_WORKER_SERVER_SOCKET={folder}/$RANK.sock; exec "$0" "$@"'
            program_with = [sys.executable, str(PROGRAMS / "with_recorder.py"), str(program), *arguments]
            command = [*launch, "--no-python", "sh", "-c", set_socket, *program_with]
        job = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline and not _has_ranks(job.pid, ranks):
                time.sleep(0.2)
            time.sleep(SETTLE_S)  # a fault that has not struck yet is looked at again
            yield job.pid
        finally:
            for process in descendants_of(job.pid):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            job.kill()
            job.wait()


def _has_ranks(pid: int, ranks: int) -> bool:
    with suppress(Exception):
        (job,), _ = jobs_wanted(Wish(str(pid)))
        return len(job.ranks) == ranks
    return False


def look(pid: int) -> tuple[Judged, float]:
    """The verdict on a job, and how long it took."""
    began = time.monotonic()
    (job,), processes = jobs_wanted(Wish(str(pid)))
    with tempfile.TemporaryDirectory() as folder:
        return attach(job, processes, Path(folder) / "bundle", Wish(str(pid))), time.monotonic() - began


def fault(case: Case) -> Row:
    """A job with a fault; looked at again where it had not struck yet."""
    with torchrun(case.path, *case.args, ranks=case.ranks) as pid:
        for _ in range(MOST_TRIES):
            judged, seconds = look(pid)
            word = judged.diagnosis.outcome.value
            if word == "stalled" or (word == "unknown" and any(e.targets for e in judged.waits.edges)):
                break
            time.sleep(SETTLE_S)
    found, truth = judged.diagnosis.findings[:1], case.truth()
    if found:
        place = found[0].location
        lines = {(place.file.rsplit("/", 1)[-1], place.line)} if place else set()
        ranks, how = list(found[0].culprit_ranks), "named"
    else:
        ranks, how = [r for r in judged.waits.roots if r in judged.case.ranks], "said"
        lines = {(f.file.rsplit("/", 1)[-1], f.line) for r in ranks for f in _frames(judged, r)}
    right = set(ranks) == set(case.culprits) or (
        case.some_culprits and bool(ranks) and set(ranks) <= set(case.culprits)
    )
    how = how if ranks else "nobody"
    how = "wrong" if how == "named" and not set(ranks) <= set(case.culprits) else how
    shown = ", ".join(f"{name}:{line}" for name, line in sorted(lines)[:1])
    return Row(
        case.name,
        judged.diagnosis.outcome.value,
        how,
        ranks,
        shown,
        right,
        right and bool(lines & truth),
        round(seconds, 1),
    )


def _frames(judged: Judged, rank: int):  # type: ignore[no-untyped-def]
    stack = judged.case.ranks[rank].main_stack
    return user_frames(stack.frames) if stack else ()


def healthy(name: str) -> Row:
    """A job in which nothing is wrong."""
    with torchrun(PROGRAMS / f"{name}.py") as pid:
        judged, seconds = look(pid)
    accused = sorted({r for f in judged.diagnosis.findings for r in f.culprit_ranks})
    is_right = not judged.diagnosis.findings and judged.diagnosis.outcome.value in ("moves", "unknown")
    how = "left alone" if is_right else "accused" if accused else "said to stand"
    return Row(name, judged.diagnosis.outcome.value, how, accused, "", is_right, is_right, round(seconds, 1))


def cost(turns: int) -> dict[str, float]:
    """The median step with ten attaches one after the other, and without, in turns; milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        spans: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
        with torchrun(PROGRAMS / "steps.py", str(times), ranks=2) as pid:
            for _ in range(turns):
                began = time.monotonic()
                for _ in range(ATTACHES):
                    look(pid)
                spans["with"].append((began, time.monotonic()))
                time.sleep(time.monotonic() - began)
                spans["without"].append((spans["with"][-1][1], time.monotonic()))
        steps = [tuple(map(float, line.split())) for line in times.read_text().splitlines() if line.count(" ") == 1]
    medians = {
        kind: 1000 * statistics.median(s for at, s in steps if any(a <= at <= b for a, b in several))
        for kind, several in spans.items()
    }
    return {kind: round(value, 3) for kind, value in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--recorder", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    global RECORDER
    RECORDER = given.recorder
    cases = {case.name: case for case in HANGS}
    faults = [_shown(fault(cases[name])) for name in FAULTS if not given.only or name in given.only]
    others = [_shown(healthy(name)) for name in HEALTHY if not given.only or name in given.only]
    took = cost(given.turns) if given.turns and (not given.only or "cost" in given.only) else {}
    counts = {
        "recorder": RECORDER,
        "faults": len(faults),
        "right_ranks": sum(r.right_ranks for r in faults),
        "right_ranks_and_line": sum(r.right_line for r in faults),
        "of_these_named": sum(r.right_line and r.how == "named" for r in faults),
        "wrong": sum(r.how == "wrong" for r in faults),
        "healthy": len(others),
        "healthy_accused": sum(r.how == "accused" for r in others),
        "median_verdict_s": statistics.median(r.seconds for r in (*faults, *others)) if faults or others else None,
        "step_ms": took,
        "load": os.getloadavg()[0],
    }
    print(json.dumps(counts, indent=1))
    if given.write:
        rows: Sequence[Row] = (*faults, *others)
        given.write.write_text(json.dumps({"counts": counts, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")


def _shown(row: Row) -> Row:
    marks = f"{'rank' if row.right_ranks else '-':5}{'line' if row.right_line else '-':5}"
    print(
        f"{row.name:30} {row.word:8} {row.how:14} {row.ranks!s:14} {row.line:34} {marks} {row.seconds:4} s", flush=True
    )
    return row


if __name__ == "__main__":
    main()
