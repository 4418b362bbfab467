"""Looks from outside at a job that was started without `unhang`: finds it, writes what was seen, and judges that as `unhang diagnose` would.

On other nodes of a job by a command that the user names (ssh, srun, kubectl exec): what comes back is joined.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.situation import Situation
from unhang.analyze.waits.standing import Word
from unhang.attach.folder import ask_ras, keep_ras, take_calls, take_outputs, write_folder
from unhang.attach.looks import FOR_S, LOCALS, Looked, take_looks, with_workers
from unhang.attach.processes import Processes
from unhang.attach.ranks import FoundJob, SeveralJobs, candidates, chosen, find_jobs, listed, spawned_ranks
from unhang.diagnosis import Judged, judge_paths
from unhang.errors import UnhangError, UnreadableInput, WrongUsage
from unhang.read import read_bundle, unpack
from unhang.read.files import read_object
from unhang.show.text import first_line
from unhang.watch import SeenOutside
from unhang.watch.folders import BUNDLE, write_job_file
from unhang.watch.process import take_stacks
from unhang.watch.ranks import disown, mark_adopted


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
    job: FoundJob, processes: Processes, bundle: Path, wish: Wish, say: Callable[[str], None], every_s: float = 5.0
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


# On the nodes of a job

NODE_LIMIT_S = 30.0
_HOST, _OURS = "{host}", "unhang: "
_MOST_AT_ONCE, _MOST_BYTES, _MOST_SAID = 32, 256 << 20, 200


@dataclass(frozen=True)
class Answer:
    """What a node sent. `jobs`: the folders of its jobs by their key. `why_not`: why there is nothing."""

    node: str
    jobs: Mapping[str, Path]
    why_not: str = ""


def command_for(via: str, node: str, remote: Sequence[str]) -> list[str]:
    """The command that runs `remote` on a node.

    Raises:
        WrongUsage: `via` cannot be read, or does not say where the node goes.
    """
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise WrongUsage(f"--via {via!r} cannot be read: {error}") from error
    if not any(_HOST in word for word in words):
        raise WrongUsage(f"--via {via!r} has no {{host}}: write it where the node's name goes, as in 'ssh {{host}}'")
    return [*(word.replace(_HOST, node) for word in words), *remote]


def parse_nodes(text: str) -> list[str]:
    """`a,b,c`.

    Raises:
        WrongUsage: there is none, or one that a command would take for an option.
    """
    nodes = [name for part in text.split(",") if (name := part.strip())]
    if not nodes or any(name.startswith("-") for name in nodes):
        raise WrongUsage(f"--nodes {text!r} names no nodes: write them as a,b,c")
    return list(dict.fromkeys(nodes))


def ask_nodes(via: str, nodes: Sequence[str], remote: Sequence[str], folder: Path, limit_s: float) -> list[Answer]:
    """Asks all nodes at the same time; what each sent is unpacked below `folder`.

    Blocks: `limit_s` for every 32 nodes. Raises: WrongUsage.
    """
    commands = [command_for(via, node, remote) for node in nodes]
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(lambda pair: _ask(pair[0], pair[1], folder, limit_s), zip(nodes, commands, strict=True)))


def _ask(node: str, command: Sequence[str], folder: Path, limit_s: float) -> Answer:
    place = Path(tempfile.mkdtemp(dir=folder))
    packed = place / "answer.tar.gz"
    try:
        with packed.open("wb") as out:
            code, said = _run(command, out.fileno(), limit_s)
    except OSError as error:
        return Answer(node, {}, f"{command[0]}: {error.strerror or error}")
    if code is None:
        return Answer(node, {}, f"it did not answer within {limit_s:.0f} s")
    if not packed.stat().st_size:
        return Answer(node, {}, said or f"it sent nothing (exit code {code})")
    if packed.stat().st_size > _MOST_BYTES:
        return Answer(node, {}, f"it sent more than {_MOST_BYTES >> 20} MiB")
    try:
        unpack(packed, place / "jobs")
    except (UnreadableInput, OSError):
        why = "what it sent is no bundle of unhang: does the command print something of its own?"
        return Answer(node, {}, said or why)
    packed.unlink()
    return Answer(node, _jobs_in(place / "jobs"))


def _run(command: Sequence[str], out: int, limit_s: float) -> tuple[int | None, str]:
    """(exit code, None where the limit ended it; what it said, in one line)."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: what we started, and nothing else
            return None, ""
    lines = said.decode(errors="replace").strip().splitlines()
    own = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS)]
    return process.returncode, next(iter([*own, *lines[-1:]]), "")[:_MOST_SAID]


def _jobs_in(folder: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.glob("**/job.json")):
        with suppress(UnreadableInput):
            key = read_object(path).get("job_key")
            found[key if isinstance(key, str) else str(path)] = path.parent
    return found


def join(key: str, answers: Sequence[Answer], report_dir: Path) -> None:
    """Puts the folders of one job into a report folder, as one `unhang run` on each node would leave them.

    A node that did not answer is noted: of its ranks nothing is known, and nobody says that they are dead.
    """
    silent = [a for a in answers if a.why_not]
    here = [a for a in answers if key in a.jobs]
    for i, answer in enumerate(here):
        target = report_dir / BUNDLE if i == 0 else report_dir / _as_name(answer.node) / BUNDLE
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        shutil.move(answer.jobs[key], target)
    first = report_dir / BUNDLE
    job = json.loads((first / "job.json").read_bytes())
    noted = [{"what": f"node {a.node}", "reason": f"{a.why_not}; of its ranks nothing is known"} for a in silent]
    write_job_file(first, {**job, "absent": [*job.get("absent", []), *noted]})


def _as_name(node: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in node).lstrip(".") or "node"
