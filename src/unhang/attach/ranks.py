"""Which processes are ranks, of which job: by what they were started with, and, where that is nothing, by their stacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unhang.attach.processes import Process, Processes
from unhang.errors import NothingToJudge, WrongUsage
from unhang.model import grouped

# Number and count of the ranks, the own number on the machine and how many there are: as each starter calls them.
_NUMBERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE", "", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
_OF_A_JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE")
_OF_A_LAUNCHER = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK")  # what a launcher gives to its ranks and does not have itself
_SPAWN_FUNCTION, _SPAWN_FILE = "_wrap", "torch/multiprocessing/spawn.py"
_RANK_NAMES = ("rank", "local_rank", "global_rank", "world_rank")
_MOST_SPAWNED = 256


class NoJob(NothingToJudge):
    """There is no job to look at."""

    help_text = "a rank is a Python process with torch and RANK (or its like) in its environment; name its pid, or that of its launcher"


class SeveralJobs(WrongUsage):
    """It must be said which one is meant."""

    help_text = ""


@dataclass(frozen=True)
class Rank:
    """A rank's process. `local` and `local_size`: None where its starter does not tell."""

    number: int
    size: int | None
    process: Process
    local: int | None = None
    local_size: int | None = None


@dataclass(frozen=True)
class FoundJob:
    """The ranks of one job on this machine. `key`: equal on all its nodes. `launchers`: what stands above all of its ranks."""

    key: str
    ranks: tuple[Rank, ...]
    launchers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of its ranks."""
        return tuple(r.process.pid for r in self.ranks)

    @property
    def size(self) -> int | None:
        """How many ranks there should be."""
        return max((r.size for r in self.ranks if r.size), default=None)


@dataclass(frozen=True)
class _Numbered:
    process: Process
    kind: int
    rank: Rank


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _numbered(process: Process) -> _Numbered | None:
    """By what it was started with. One task alone of Slurm is no rank: its launcher starts these."""
    given = process.environment
    for kind, (number, size, local, local_size) in enumerate(_NUMBERS):
        mine, of = _number(given.get(number)), _number(given.get(size))
        if mine is not None and (of is not None or kind == 0) and not (kind and of == 1):
            rank = Rank(mine, of, process, _number(given.get(local)), _number(given.get(local_size)))
            return _Numbered(process, kind, rank)
    return None


def _without_others(found: Mapping[int, _Numbered], processes: Processes) -> Iterator[_Numbered]:
    """Without helpers, which stand below a rank with the same kind of number, and launchers, which stand above others."""
    for pid, mine in found.items():
        above = [found[p] for p in processes.above(pid) if p in found]
        below = [found[p] for p in processes.below(pid) if p in found]
        if any(other.kind == mine.kind and not _starts(other, mine) for other in above):
            continue
        if any(other.kind < mine.kind or _starts(mine, other) for other in below):
            continue
        yield mine


def _starts(upper: _Numbered, lower: _Numbered) -> bool:
    """Whether the upper one is a launcher: the lower one has what a launcher gives, and the upper one has not."""
    ours, theirs = upper.process.environment, lower.process.environment
    return any(name in theirs and name not in ours for name in _OF_A_LAUNCHER)


def find_jobs(processes: Processes, spawned: Sequence[Rank] = ()) -> list[FoundJob]:
    """The jobs of this machine, the one with the most ranks first. `spawned`: ranks that only their stacks tell, see `spawned_ranks`."""
    pythons = [p for p in processes.by_pid.values() if p.is_python and p.has_torch]
    found = {p.pid: n for p in pythons if (n := _numbered(p)) is not None}
    groups = grouped((_key(mine.process, processes), mine.rank) for mine in _without_others(found, processes))
    known = {r.process.pid for ranks in groups.values() for r in ranks}
    for rank in spawned:
        if rank.process.pid not in known:
            groups.setdefault(f"spawned by {rank.process.parent}", []).append(rank)
    jobs = [_job(key, ranks, processes) for key, several in groups.items() for ranks in _apart(several)]
    return sorted(jobs, key=lambda job: (-len(job.ranks), job.ranks[0].process.pid))


def _key(process: Process, processes: Processes) -> str:
    given = process.environment
    parts = [f"{name}={given[name]}" for name in _OF_A_JOB if given.get(name)]
    names = [part.partition("=")[0] for part in parts]
    if "MASTER_PORT" not in names and "SLURM_JOB_ID" not in names:
        parts.append(f"parent={process.parent}")
    return " ".join(parts)


def _apart(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """Ranks of several jobs that were started with the same address: no job has a rank twice."""
    if len({r.number for r in ranks}) == len(ranks):
        return [list(ranks)]
    by_parent = grouped(((rank.process.parent, rank.process.network), rank) for rank in ranks)
    return list(by_parent.values())


def _job(key: str, ranks: Sequence[Rank], processes: Processes) -> FoundJob:
    newest: dict[int, Rank] = {}
    for rank in sorted(ranks, key=lambda r: (r.process.start_ticks, r.process.pid)):
        newest[rank.number] = rank
    notes = [
        f"process {r.process.pid} is rank {r.number} too and was left out: {newest[r.number].process.pid} is newer"
        for r in ranks
        if newest[r.number] is not r
    ]
    inside = [r for r in newest.values() if r.process.pids_inside]
    if inside:
        seen = ", ".join(f"rank {r.number} is {r.process.pid}, there {r.process.pids_inside[-1]}" for r in inside[:4])
        notes.append(f"in a container, the pids are those of this side: {seen}")
    above = [set(processes.above(r.process.pid)) for r in newest.values()]
    shared = set.intersection(*above) if above else set()
    launchers = [p for p in processes.above(ranks[0].process.pid) if p in shared and p > 1]
    return FoundJob(key, tuple(newest[n] for n in sorted(newest)), tuple(launchers), notes=tuple(notes))


# Ranks that only their stacks tell


def candidates(processes: Processes, known: Iterable[int], target: str | None = None) -> list[Process]:
    """Interpreters with torch that have no number: children of `mp.spawn`, workers of Ray. To ask them costs a look at each.

    Only several of one parent, as ranks are, and of those only who belongs to `target`, a pid or a part of a command line.
    """
    ranks = set(known)
    near = None if target is None else _near(target, processes)
    by_parent: dict[int, list[Process]] = {}
    for process in processes.by_pid.values():
        is_worker = process.is_python or (process.command[0:1] and process.command[0].startswith("ray::"))
        if process.pid in ranks or not is_worker or (near is not None and process.pid not in near):
            continue
        if ranks.isdisjoint(processes.above(process.pid)) and process.has_torch:
            by_parent.setdefault(process.parent, []).append(process)
    return [p for several in by_parent.values() if len(several) > 1 for p in several][:_MOST_SPAWNED]


def _near(target: str, processes: Processes) -> set[int]:
    """What stands at, below or above the processes that are meant, and beside them."""
    named = (p.pid for p in processes.by_pid.values() if p.is_python and target in " ".join(p.command))
    roots = [int(target)] if target.isdecimal() else list(named)
    found = set(roots)
    for root in roots:
        above = processes.above(root)
        found.update(above, processes.below(root), processes.below(above[0]) if above and above[0] > 1 else ())
    return found


def spawned_ranks(found: Mapping[int, list[Any]], processes: Processes) -> list[Rank]:
    """The ranks among processes whose stacks were taken with their local variables.

    Of `torch.multiprocessing.spawn` the number is an argument of its own function; else one that the program calls `rank`.
    """
    numbers: dict[int, tuple[int, int | None]] = {}
    for pid, threads in found.items():
        main = next((t for t in threads if t.get("os_thread_id") == pid or t.get("thread_name") == "MainThread"), None)
        if main is not None and (number := _told(main.get("frames") or ())) is not None:
            numbers[pid] = number
    sizes: dict[int, int] = {}
    for pid, (own, _) in numbers.items():
        parent = processes.by_pid[pid].parent
        sizes[parent] = max(sizes.get(parent, 0), own + 1)
    found_ranks = ((processes.by_pid[pid], own, size) for pid, (own, size) in numbers.items())
    ranks = [Rank(own, size or sizes[process.parent], process) for process, own, size in found_ranks]
    several = {r.process.parent for r in ranks if sum(o.process.parent == r.process.parent for o in ranks) > 1}
    return [replace(r, local=r.number, local_size=r.size) for r in ranks if r.process.parent in several]


def _told(frames: Sequence[Mapping[str, Any]]) -> tuple[int, int | None] | None:
    """(number, how many) by the outermost frame that tells."""
    size = next((n for f in frames if (n := _local(f, ("world_size", "nprocs")))), None)
    for frame in reversed(frames):
        if str(frame.get("name")).endswith(_SPAWN_FUNCTION) and str(frame.get("filename")).endswith(_SPAWN_FILE):
            number = _local(frame, ("i",))
            return None if number is None else (number, size)
    for frame in reversed(frames):
        number = _local(frame, _RANK_NAMES, True) if "site-packages/" not in str(frame.get("filename")) else None
        if number is not None:
            return number, size
    return None


def _local(frame: Mapping[str, Any], names: Sequence[str], only_arguments: bool = False) -> int | None:
    for local in frame.get("locals") or ():
        if local.get("name") in names and (local.get("arg") or not only_arguments):
            return _number(str(local.get("repr")))
    return None


# Which one is meant


def chosen(jobs: Sequence[FoundJob], target: str | None, processes: Processes, hidden: int = 0) -> list[FoundJob]:
    """The jobs that a pid, a part of a command line, or nothing stands for.

    Raises:
        NoJob: there is none. SeveralJobs: there are several, and nothing tells which.
    """
    found = list(jobs)
    if target is not None and target.isdecimal():
        found = [job for job in jobs if _belongs(int(target), job, processes)]
        if not found:
            raise NoJob(_nothing_at(int(target), processes))
    elif target is not None:
        found = [job for job in jobs if any(target in line for line in _commands(job, processes))]
    if not found:
        of_others = f"; {hidden} Python processes of other users cannot be looked into (sudo)" if hidden else ""
        what = f"no job whose command line has {target!r}" if target is not None else "no job"
        raise NoJob(f"{what} runs on this machine{of_others}")
    return found


def _nothing_at(pid: int, processes: Processes) -> str:
    process = processes.by_pid.get(pid)
    if process is None:
        return f"there is no process {pid}"
    if not process.is_readable:
        return f"process {pid} belongs to {process.user} and may not be read: run 'sudo unhang attach {pid}'"
    return f"process {pid} is no rank of a job, and none is below it"


def _belongs(pid: int, job: FoundJob, processes: Processes) -> bool:
    ranks = set(job.pids)
    return pid in ranks or bool(ranks & set(processes.below(pid))) or bool(ranks & set(processes.above(pid)))


def _commands(job: FoundJob, processes: Processes) -> list[str]:
    pids = (*job.pids, *(p for p in job.launchers if processes.by_pid[p].is_python))
    return [" ".join(processes.by_pid[pid].command) for pid in pids]


def listed(jobs: Sequence[FoundJob], processes: Processes) -> list[str]:
    """One line for each job: what to type, how many ranks, its pids, its command."""
    from unhang.read.environment import redact_command

    lines = []
    for job in jobs:
        rank = job.ranks[0]
        top = next((p for p in job.launchers if processes.by_pid[p].is_python), rank.process.pid)
        command = " ".join(redact_command(rank.process.command))[:100]
        of = f" of {job.size}" if job.size and job.size != len(job.ranks) else ""
        pids = ", ".join(map(str, job.pids[:8])) + (", ..." if len(job.pids) > 8 else "")
        lines.append(f"unhang attach {top}   # {len(job.ranks)}{of} ranks, pids {pids}: {command}")
    return lines
