"""The verb: finds the jobs, looks at them, writes what was seen, and judges it as `unhang diagnose` would."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.situation import Situation
from unhang.analyze.standing import Word
from unhang.attach.folder import ask_ras, keep_ras, take_calls, take_outputs, write_folder
from unhang.attach.looks import FOR_S, LOCALS, Looked, take_looks, with_workers
from unhang.attach.processes import Processes
from unhang.attach.ranks import FoundJob, SeveralJobs, candidates, chosen, find_jobs, listed, spawned_ranks
from unhang.diagnosis import Judged, judge_paths
from unhang.errors import UnhangError
from unhang.read.bundle import read_bundle
from unhang.show.text import first_line
from unhang.watch.options import SeenOutside
from unhang.watch.spy import take_stacks
from unhang.watch.unregistered import disown, mark_adopted


class Wish(NamedTuple):
    """What is wanted. `for_s`: how long the looks may take. `native`: with frames of C."""

    target: str | None = None
    takes_all: bool = False
    for_s: float = FOR_S
    native: bool = False


def jobs_wanted(wish: Wish) -> tuple[list[FoundJob], Processes]:
    """The jobs that are meant, and the processes among which they were found.

    Raises:
        NoJob: there is none. SeveralJobs: one is meant and there are several.
    """
    processes = Processes()
    jobs = find_jobs(processes)
    is_asked = wish.target is not None or wish.takes_all or not jobs
    unknown = candidates(processes, [pid for job in jobs for pid in job.pids], wish.target) if is_asked else []
    if unknown:
        stacks = take_stacks([p.pid for p in unknown], [p.pid for p in unknown if p.state in "Tt"], options=[LOCALS])
        if spawned := spawned_ranks(stacks, processes):
            jobs = find_jobs(processes, spawned)
    hidden = sum(p.is_python and p.uid != os.geteuid() and not p.is_readable for p in processes.by_pid.values())
    found = chosen(jobs, wish.target, processes, hidden)
    if len(found) > 1 and not wish.takes_all:
        lines = "".join(f"\n  {line}" for line in listed(found, processes))
        raise SeveralJobs(f"several jobs run here; name one by a pid, or take all with --all:{lines}")
    return found, processes


def look_at(job: FoundJob, processes: Processes, bundle: Path, wish: Wish) -> None:
    """Looks at one job; `bundle` becomes the folder of the evidence.

    Blocks: `wish.for_s` and two seconds at most; twice that where the job came to a stand meanwhile.
    """

    def moves(looked: Sequence[Looked]) -> bool:
        """Whether the job moves, and did so at the last look."""
        write_folder(bundle, job, looked, processes)
        standing = Situation(read_bundle(bundle)).standing
        return standing is not None and standing.word is Word.MOVES and not all(seen.is_still for seen in looked)

    ras = ask_ras(job)
    looked = take_looks(job.ranks, wish.for_s, wish.native, moves)
    if any(seen.look["moved"] for seen in looked) and all(seen.is_still for seen in looked):
        looked = take_looks(job.ranks, wish.for_s, wish.native, moves)
    write_folder(bundle, job, with_workers(looked), processes)
    if not any(seen.look["moved"] for seen in looked):
        take_calls(bundle, job, processes)  # of a job that moves, a dump is of another moment than the stacks
    take_outputs(bundle, job, processes)
    if ras:
        keep_ras(bundle, ras + ask_ras(job))


def attach(job: FoundJob, processes: Processes, bundle: Path, wish: Wish) -> Judged:
    """Looks at one job and judges what was seen, see `look_at`."""
    look_at(job, processes, bundle, wish)
    return judge_paths([bundle])


def look_below(pid: int, run_dir: Path) -> SeenOutside | None:
    """Looks at the ranks below a process; where they stand still, `run_dir` has what was seen, else nothing of ranks from outside.

    None: there are none. Blocks: as `look_at`.
    """
    for folder in (run_dir / "ranks").glob("*"):
        disown(folder)
    try:
        jobs, processes = jobs_wanted(Wish(str(pid), takes_all=True))
    except UnhangError:
        return None
    with tempfile.TemporaryDirectory(prefix="unhang-") as temporary:
        bundle = Path(temporary)
        look_at(jobs[0], processes, bundle, Wish())
        situation = Situation(read_bundle(bundle))
        standing = situation.standing
        if standing is None:
            return None
        if standing.word is Word.STALLED:
            for folder in (bundle / "ranks").iterdir():
                shutil.copytree(folder, run_dir / "ranks" / folder.name)
                mark_adopted(run_dir / "ranks" / folder.name)
        return SeenOutside(standing.word.value, standing.text, tuple(sorted(situation.waits.waiting)))


def watch(
    job: FoundJob,
    processes: Processes,
    bundle: Path,
    wish: Wish,
    say: Callable[[str], None],
    every_s: float = 5.0,
) -> Judged:
    """Looks again and again, and says when the word changes; ends with the job. The last verdict counts.

    Blocks: as long as the job runs, or until Ctrl-C.
    """
    judged = attach(job, processes, bundle, wish)
    since, said = time.monotonic(), ""
    try:
        while True:
            word = judged.diagnosis.outcome.value
            if word != said:
                since, said = time.monotonic(), word
                say(first_line(judged.diagnosis, judged.case, judged.waits))
            elif word != Word.MOVES:
                say(f"{word} for {time.monotonic() - since:.0f} s")
            time.sleep(every_s)
            if not any(rank.process.is_there() for rank in job.ranks):
                say("the job has ended")
                return judged
            fresh = bundle.with_name(f".{bundle.name}-new")
            look_at(job, processes, fresh, wish)
            shutil.rmtree(bundle, ignore_errors=True)
            fresh.rename(bundle)
            judged = judge_paths([bundle])
    except KeyboardInterrupt:
        return judged
