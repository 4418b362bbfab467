"""Runs of `unhang run`: their reports, which of them are nodes of one job, what they say of it, which ranks they could see.

A report is an opinion: nothing that we wrote is ever read as a log, and its verdict counts where the evidence is gone.

One `unhang run` on each node, or for each task of `srun` and `mpirun`, sees only its own ranks. That another node's rank is not
among them says nothing of it; that a rank of its own never came does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from unhang.errors import NotEvidence, UnreadableInput
from unhang.model import Course, Diagnosis, RankIdentity
from unhang.read.files import read_bytes, read_object, text, unreadable, whole, wholes
from unhang.read.rank_folder import FOLDER_NAME, RankRecord

SCHEMA = "unhang.report/1"
REPORT = "report.json"
REPORTS = (REPORT, "report.html", "report.txt")
HEAD_BYTES = 4096
_OUR_JSON = re.compile(rb'\s*\{\s*"schema":\s*"(unhang\.[a-z_]+/\d+)"')
_OUR_PAGE = re.compile(rb"<!doctype html>.{0,200} content=\"default-src 'none'; script-src 'sha256-", re.DOTALL)
MAX_DEPTH = 3
BUNDLE = "bundle"
_JOB = "job.json"
COURSE = "course.json"
# The number of this task and how many there are, as the starter of `unhang run` itself tells.
_TASK = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SIZES = (*(size for _, size in _TASK), "SLURM_NTASKS")


def schema_of(head: bytes) -> str:
    """The schema of JSON of ours that begins like this; empty if it is none."""
    found = _OUR_JSON.match(head)
    return found[1].decode() if found else ""


def is_own(path: Path, head: bytes) -> bool:
    """Whether we wrote a file that begins like this: it is an opinion, and no evidence."""
    is_text = path.name == "report.txt" and schema_of(_head(path.with_name(REPORT))) == SCHEMA
    return is_text or bool(schema_of(head)) or bool(_OUR_PAGE.match(head))


def is_own_file(path: Path) -> bool:
    """The same of a file of this machine."""
    return path.is_file() and is_own(path, _head(path))


def holds_report(folder: Path) -> bool:
    """Whether the verdict on a run lies in a folder."""
    return schema_of(_head(folder / REPORT)) == SCHEMA


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            return f.read(HEAD_BYTES)
    except OSError:
        return b""


def read_report(path: Path) -> Diagnosis:
    """The diagnosis in a report.json.

    Raises:
        UnreadableInput: it is damaged, or of another version of unhang.
    """
    import msgspec

    try:
        return msgspec.convert(read_object(path), Diagnosis)
    except msgspec.ValidationError as error:
        reason = f"it is damaged, or of another version of unhang ({error})"
        raise NotEvidence(f"{path}: {reason}; judge the bundle of the run") from error


def report_beside(path: Path) -> Path:
    """The report.json that holds the verdict which a file of ours shows.

    Raises:
        NotEvidence: there is none.
    """
    if schema_of(_head(path)) == SCHEMA:
        return path
    if holds_report(path.parent) and path.name in REPORTS:
        return path.parent / REPORT
    raise NotEvidence(f"{path}: unhang wrote it, and it is not evidence; give the report.json or the bundle of the run")


@dataclass(frozen=True, slots=True)
class Run:
    """A report folder or a bundle. `ranks`: those that started under it; empty where none is known.

    `started_ns`: where its start is not noted, when it was written. `ended_ns`: 0 where it is not noted.
    """

    path: Path
    started_ns: int
    ended_ns: int = 0
    ranks: frozenset[int] = frozenset()
    world_size: int | None = None

    @property
    def report(self) -> Path | None:
        """Where its verdict lies."""
        return self.path / REPORT if holds_report(self.path) else None


Job = tuple[Run, ...]


def began_ns(job: Job) -> int:
    """When it began, by the clock of its first node."""
    return min(run.started_ns for run in job)


def has_bundle(folder: Path) -> bool:
    """Whether a folder is a report folder with its evidence, or a bundle."""
    return any(os.path.exists(folder / name) for name in (_JOB, f"{BUNDLE}/{_JOB}"))


def is_run(folder: Path) -> bool:
    """Whether a folder is what `unhang run` left of one run; the evidence may be gone since."""
    return has_bundle(folder) or (holds_report(folder) and set(names_in(folder)) <= set(REPORTS))


def jobs_in(folder: Path) -> list[Job]:
    """The jobs whose reports lie in sub-folders, the newest first; none where the folder is itself a run."""
    return [] if has_bundle(folder) else jobs_of(_folders(folder, MAX_DEPTH))


def jobs_of(folders: Iterable[Path]) -> list[Job]:
    """The jobs whose runs these are, the newest first.

    Nodes of one job report each for itself. Runs are taken for such nodes where all says so: they ran at the same time,
    their jobs have equally many ranks, and no rank is in two of them.
    """
    jobs: list[list[Run]] = []
    for run in sorted(map(_run, folders), key=lambda r: (r.started_ns, r.path)):
        same = [job for job in jobs if all(_are_nodes(run, other) for other in job)]
        if len(same) == 1:
            same[0].append(run)
        else:
            jobs.append([run])
    newest_first = sorted(jobs, key=lambda job: (-job[0].started_ns, job[0].path))
    return [tuple(sorted(job, key=lambda r: r.path)) for job in newest_first]


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        found = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]
    for path in sorted(found):
        if is_run(path):
            yield path
        elif depth > 1:
            yield from _folders(path, depth - 1)


def _are_nodes(a: Run, b: Run) -> bool:
    if not (a.ranks and b.ranks and a.ended_ns and b.ended_ns and a.world_size and a.world_size == b.world_size):
        return False
    is_same_time = max(a.started_ns, b.started_ns) < min(a.ended_ns, b.ended_ns)
    return is_same_time and not a.ranks & b.ranks and len(a.ranks) + len(b.ranks) <= a.world_size


def _run(path: Path) -> Run:
    bundle = path / BUNDLE if (path / BUNDLE).is_dir() else path
    job = _object(bundle / _JOB)
    names = [name for name in names_in(bundle / "ranks") if FOLDER_NAME.match(name)]
    ranks = frozenset(int(name[1:].split("-")[0]) for name in names)
    sizes = (whole(_object(bundle / "ranks" / name / "identity.json"), "world_size") for name in sorted(names))
    return Run(
        path,
        whole(job, "started_ns") or _written_ns(path),
        whole(job, "ended_ns") or 0,
        ranks,
        next((size for size in sizes if size), None),
    )


def names_in(folder: Path) -> Sequence[str]:
    """The names in a folder; none where it cannot be read."""
    with suppress(OSError):
        return os.listdir(folder)
    return ()


def _object(path: Path) -> dict[str, object]:
    with suppress(UnreadableInput):
        return read_object(path)
    return {}


def _written_ns(folder: Path) -> int:
    for path in (folder / REPORT, folder):
        with suppress(OSError):
            return path.stat().st_mtime_ns
    return 0


def ran_together(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two runs ran at the same time, as parts of one job do; one that has not ended still runs."""
    starts, ends = zip(*((whole(job, "started_ns") or 0, whole(job, "ended_ns")) for job in (one, other)), strict=True)
    return all(end is None or end > start for start, end in zip(starts, reversed(ends), strict=True))


def joined_job(one: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """job.json of both. The exit code is that of a run that ended the job, else the first that is not 0."""
    if not one or not other or not ran_together(one, other):
        return one or other
    first = one if _weight(one) >= _weight(other) else other
    ends: dict[str, object] = {
        name: first[name] for name in ("exit_code", "ended_by_us", "interrupted_by") if name in first
    }
    found = {**other, **one, **ends}
    for name, choose in (("started_ns", min), ("ended_ns", max), ("aborted_ns", min), ("interrupted_ns", min)):
        times = [t for job in (one, other) if (t := whole(job, name)) is not None]
        if times:
            found[name] = choose(times)
    absent = [job.get("absent") for job in (one, other)]
    return {**found, "absent": [noted for listed in absent if isinstance(listed, list) for noted in listed]}


def _weight(job: dict[str, object]) -> int:
    code = whole(job, "exit_code")
    return 3 if job.get("ended_by_us") is True else 0 if code == 0 else 1 if code is None else 2


def joined_verdict(one: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """verdict.json of both: that of the watcher that was surer, with all ranks of which it is known that they wait."""
    if not one or not other:
        return one or other
    first, second = (one, other) if _sureness(one) >= _sureness(other) else (other, one)
    if second.get("withdrawn") is True:
        return first
    return {
        **first,
        "waiting_ranks": sorted({*wholes(first.get("waiting_ranks")), *wholes(second.get("waiting_ranks"))}),
    }


def _sureness(verdict: dict[str, object]) -> int:
    return 0 if verdict.get("withdrawn") is True else 2 if text(verdict, "kind") == "proven" else 1


def read_course(path: Path) -> Course:
    """course.json: how a job ran while it was watched.

    Raises:
        UnreadableInput: it is no such file.
    """
    import msgspec

    data = read_bytes(path)
    try:
        found = msgspec.json.decode(data, type=Course, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(str(path), f"it does not say how a job ran ({error})", "leave the file out") from None
    return found


def joined_course(one: Course | None, other: Course | None) -> Course | None:
    """That of the runs on two nodes: what was said of ranks is put together, of samples too; the machines' own are the first's."""
    if one is None or other is None:
        return one or other
    longer = one if one.slow_count >= other.slow_count else other
    stalls = {(round(s.onset_s), s.waiting_ranks): s for s in (*other.stalls, *one.stalls)}
    return replace(
        longer,
        ran_s=max(one.ran_s, other.ran_s),
        steps={**other.steps, **one.steps},
        slower=one.slower or other.slower,
        stalls=tuple(stalls.values()),
        samples={**other.samples, **one.samples} if len(_at(one)) == len(_at(other)) else longer.samples,
        changed=tuple({change.path: change for change in (*other.changed, *one.changed)}.values()),
    )


def _at(course: Course) -> tuple[float | None, ...]:
    return course.samples.get("at_s", ())


def out_of_sight(
    runs: Mapping[str, Mapping[str, object]], records: Mapping[int, RankRecord], world: Collection[int]
) -> tuple[int, ...]:
    """The ranks of the world that no run could see. `runs`: job.json of each run directory that was given, by folder."""
    if not runs:
        return ()
    seen: dict[str, dict[int, RankIdentity]] = {folder: {} for folder in runs}
    for rank, record in records.items():
        folder = str(Path(record.path).parent.parent)
        seen.setdefault(folder if record.path else "", {})[rank] = record.identity
    visible = set(records)
    for folder, identities in seen.items():
        if folder:
            job = runs.get(folder, {})
            visible.update(_of_run(_environment(job), identities, world, job.get("attached") is True))
    return tuple(r for r in world if r not in visible)


def _environment(job: Mapping[str, object]) -> Mapping[str, object]:
    stored = job.get("environment")
    return stored if isinstance(stored, dict) else {}


def _of_run(
    environment: Mapping[str, object], seen: Mapping[int, RankIdentity], world: Collection[int], is_attached: bool
) -> Collection[int]:
    """The ranks that one run starts; all of them where nothing tells of another node or task.

    `is_attached`: it started none of them. What it did not see may run elsewhere, unless all meet at this machine's own address.
    """
    task = _task(environment)
    if task is not None and task[1] == len(world) and set(seen) <= {task[0]}:
        return (task[0],)
    if len(seen) == 1 and _is_alone(next(iter(seen.values())), environment):
        return seen
    local = _launched_here(list(seen.values()))
    if local is not None:
        return local
    if task is not None:
        size, rest = divmod(len(world), task[1])
        block = range(task[0] * size, (task[0] + 1) * size)
        return block if not rest and set(seen) <= set(block) else seen
    if is_attached and environment.get("MASTER_ADDR") not in _LOOPBACK:
        return seen
    on_several = (whole(environment, "SLURM_NNODES") or 1) > 1 or "NODE_RANK" in environment
    return seen if on_several else world


def _task(environment: Mapping[str, object]) -> tuple[int, int] | None:
    """(number, of how many) of the tasks of which this run is one; None where it is the only one."""
    for number_name, size_name in _TASK:
        number, size = whole(environment, number_name), whole(environment, size_name)
        if number is not None and size is None and "SLURM_STEP_ID" in environment and size_name.startswith("SLURM"):
            size = whole(environment, "SLURM_NTASKS")
        if number is not None and size is not None and 0 <= number < size and size > 1:
            return number, size
    return None


def _is_alone(identity: RankIdentity, environment: Mapping[str, object]) -> bool:
    """Whether the command itself is the rank, and knew of its world before it started: whoever started it starts the others."""
    size = identity.world_size
    return identity.is_command and (size is None or any(whole(environment, name) == size for name in _SIZES))


def _launched_here(seen: Sequence[RankIdentity]) -> Collection[int] | None:
    """The ranks that a launcher started here, by its own word; None where it does not tell."""
    reported = [(i.rank, i.local_rank, i.local_world_size) for i in seen]
    blocks = {(r - at, size) for r, at, size in reported if at is not None and size is not None and r >= at}
    if not blocks or any(at is None or size is None for _, at, size in reported):
        return None
    if len(blocks) == 1:
        first, size = blocks.pop()
        return range(first, first + size)
    places = {at for _, at, _ in reported}
    is_whole = all(places == set(range(size or 0)) for _, _, size in reported)
    return [i.rank for i in seen] if is_whole else None  # dealt out by turns over the nodes, and all of these came


def shift_clock(record: RankRecord, by_ns: int) -> None:
    """Brings the times of another node's clock to that of the node that wrote the run directory."""
    record.clock_offset_ns = by_ns
    record.identity = replace(record.identity, started_ns=_shifted(record.identity.started_ns, by_ns))
    record.handled = tuple(replace(e, time_ns=_shifted(e.time_ns, by_ns)) for e in record.handled)
    if record.error is not None:
        record.error = replace(record.error, time_ns=_shifted(record.error.time_ns, by_ns))
    for fields in (record.proc_fields, record.exit_fields):
        for name in ("died_ns", "taken_ns", "time_ns"):
            if (time_ns := whole(fields, name)) is not None:
                fields[name] = _shifted(time_ns, by_ns)
    if page := record.page:
        calls = (
            replace(c, started_ns=_shifted(c.started_ns, by_ns), ended_ns=c.ended_ns and _shifted(c.ended_ns, by_ns))
            for c in page.pending
        )
        since, last = _shifted(page.phase_since_ns, by_ns), _shifted(page.last_step_ns, by_ns)
        record.page = replace(page, pending=tuple(calls), phase_since_ns=since, last_step_ns=last)


def _shifted(time_ns: int, by_ns: int) -> int:
    return time_ns + by_ns if time_ns else 0
