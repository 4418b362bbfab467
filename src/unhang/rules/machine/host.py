"""Rules on what the processes of a job find on a host: cores, memory, descriptors, folders, and what its kernel has said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from unhang.analyze.situation import Situation
from unhang.model import Reading, grouped
from unhang.rules.base import Found, rule
from unhang.rules.machine import SHARE, Needs, ago, cite, found_by, needs_of, ranks_of, size

_BUSY, _CROWDED = 2, 4  # busy threads for each core: loader workers and main threads wait part of their time
_LEAST_CORES = 4
_CHECKPOINT_BYTES, _TIMEOUT_S = 10e9, 600.0
_SLOW_MB_PER_S = _CHECKPOINT_BYTES / 1e6 / _TIMEOUT_S
_FULL, _NEARLY_FULL = 16 << 20, 1 << 30
_FEW_INODES = 100
_NO_SPACE = (28, 122)  # ENOSPC, EDQUOT
# A limit of processes and threads: its name, and the fields of the most and of what is there already.
_OF_GROUP = ("pids.max of the container", "most_in_group", "count_in_group")
_OF_MACHINE = ("the machine's limit of threads", "most_on_machine", "count")
_OF_USER = ("ulimit -u", "user_limit", "own_count")
_HOUR_S = 3600.0
_A_TRAINING = re.compile(r"python|torch|^pt_|^ray|train|slurm", re.IGNORECASE)
_KERNEL_TROUBLE = ("kernel.server_lost", "kernel.disk_error", "kernel.hung_task", "kernel.lockup")
_WITH_CAPABILITY_ONLY = 2
_FLAPS = 3
_ENOUGH_LOCKED = 64 << 30


def _age_s(reading: Reading) -> float:
    return reading.number("age_s") or 0.0


def _by_folder(readings: Iterable[Reading]) -> dict[str, list[Reading]]:
    return grouped((reading.subject, reading) for reading in readings)


@rule("descriptor-limit", reads=("machine.limit", "setup.job"))
def descriptor_limit(s: Situation) -> Found | None:
    """All ranks whose limit is too low, with the numbers of the worst."""

    def words(needs: Needs, limit: float) -> dict[str, object]:
        return {"limit": f"{limit:g}", "files": needs.files, "world": needs.world, "workers": needs.workers or 0}

    limits = s.readings.of("machine.limit", subject="nofile")
    return _too_little(s, limits, "nofile", "soft", lambda needs: needs.files, words)


@rule("little-memory", reads=("machine.memory", "setup.job"))
def little_memory(s: Situation) -> Found | None:
    """All hosts that have too little, with the numbers of the worst."""

    def words(needs: Needs, have: float) -> dict[str, object]:
        batches = f", {size(needs.loader_bytes)} of it in batches" if needs.loader_bytes else ""
        return {"who": needs.who, "needed": size(needs.memory_bytes), "left": size(have), "batches": batches}

    memory = s.readings.of("machine.memory")
    return _too_little(s, memory, "memory_bytes", "left_bytes", lambda needs: needs.memory_bytes, words)


def _too_little(
    s: Situation,
    readings: Iterable[Reading],
    planned: str,
    read: str,
    needed: Callable[[Needs], int],
    words: Callable[[Needs, float], Mapping[str, object]],
) -> Found | None:
    """The readings of less than is needed, by the plan's value or the one that was read; `words`: of the worst."""
    short = []
    for reading in readings:
        needs = needs_of(s, reading)
        have = needs.planned(planned) or reading.number(read)
        if have is not None and needed(needs) > SHARE * have:
            short.append((needed(needs) / max(have, 1), reading, needs, have))
    if not short:
        return None
    ratio, _, needs, have = max(short, key=lambda x: x[0])
    found = [reading for _, reading, _, _ in short]
    said = {"place": needs.place(planned, found), **words(needs, have)}
    return found_by(found, 0.92 if ratio > 1 else 0.75, said, evidence=cite([needs.job, *found]))


@rule("process-limit", reads=("machine.processes", "setup.job"))
def process_limit(s: Situation) -> Found | None:
    """The tightest of the limits that are too low."""
    short = []
    for reading in s.readings.of("machine.processes"):
        needs = needs_of(s, reading)
        for name, left in _processes_left(reading):
            if needs.processes > SHARE * left:
                short.append((needs.processes / max(left, 1), name, left, reading, needs))
    if not short:
        return None
    ratio, name, left, _, needs = max(short, key=lambda x: x[0])
    readings = [x[3] for x in short if x[1] == name]
    words = {
        "limit": name,
        "left": f"{max(0, left):g}",
        "processes": needs.processes,
        "who": needs.who,
    }
    return found_by(readings, 0.9 if ratio > 1 else 0.75, words)


def _processes_left(reading: Reading) -> Iterator[tuple[str, float]]:
    """What each limit leaves."""
    pairs = [_OF_GROUP, _OF_MACHINE, *(() if reading["is_exempt"] else (_OF_USER,))]
    for name, most, count in pairs:
        limit, used = reading.number(most), reading.number(count)
        if limit is not None and used is not None:
            yield name, limit - used


@rule("few-cores", reads=("machine.cores", "setup.job"))
def few_cores(s: Situation) -> Found | None:
    """All hosts that have too few for what runs on them; else the ranks that are bound to a single core."""
    cores = s.readings.of("machine.cores")
    crowded = []
    for host in dict.fromkeys(r.host for r in cores):
        readings = [r for r in cores if r.host == host]
        needs = needs_of(s, readings[0])
        have, threads = _cores(readings, needs), _threads(readings[0], needs)
        wanted = needs.ranks * (threads + (needs.workers or 0))
        if wanted > _BUSY * have:
            crowded.append((wanted / have, readings, needs, have, threads))
    if crowded:
        return _crowded(*max(crowded, key=lambda c: c[0]), [r for c in crowded for r in c[1]])
    single = [r for r in cores if _is_single(r, needs_of(s, r))]
    if not single:
        return None
    return found_by(single, 0.72, {}, "single", fixes=("cores",))


def _crowded(
    ratio: float, worst: Sequence[Reading], needs: Needs, have: float, threads: int, readings: Sequence[Reading]
) -> Found:
    is_unset = needs.threads is None and threads > 1
    quota = worst[0].number("quota")
    words = {
        "wanted": f"{needs.ranks} x ({threads} thread{'s' * (threads > 1)} + {needs.workers or 0} workers)",
        "cores": f"{have:g} core{'s' * (have != 1)} {needs.place('cores', readings)}",
        "unset": " OMP_NUM_THREADS is not set, so that each rank starts a thread for each core that it sees."
        * is_unset,
        "quota": " The limit is the quota of the container, which torch does not see."
        if quota is not None and quota <= have
        else "",
    }
    fixes = ("threads",) if is_unset else ("workers", "cores") if needs.workers else ("cores",)
    return found_by(readings, 0.8 if ratio > _CROWDED else 0.72, words, "crowded", fixes=fixes)


def _cores(readings: Sequence[Reading], needs: Needs) -> float:
    """Cores of a host for all its ranks together: what the plan says, else what any of them may use, within their quota."""
    planned = needs.planned("cores")
    if planned:
        return planned
    cpus = {number for r in readings for number in _numbers(r.text("cpus"))}
    quotas = [q for r in readings if (q := r.number("quota"))]
    return min([float(len(cpus) or 1), *([max(quotas)] if len(quotas) == len(readings) else [])])


def _numbers(text: str) -> Iterator[int]:
    """`0-3,8` as numbers."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _threads(reading: Reading, needs: Needs) -> int:
    """Threads that each rank computes with. Where nothing is set: one of torchrun's, else as many as it sees cores.

    A rank that is alone takes all cores and disturbs nobody, unless a quota gives it fewer than it sees.
    """
    if needs.threads:
        return needs.threads
    if needs.is_plan or (needs.ranks == 1 and reading.number("quota") is None):
        return 1
    return int(reading.number("count") or 1)


def _is_single(reading: Reading, needs: Needs) -> bool:
    is_bound = reading["count"] == 1 and (reading.number("online") or 0) >= _LEAST_CORES
    return is_bound and needs.world > 1 and not needs.is_plan


@rule("folder-hangs", reads=("machine.folder",))
def folder_hangs(s: Situation) -> Iterator[Found]:
    """One finding a folder."""
    for folder, readings in _by_folder(r for r in s.readings.of("machine.folder") if r["hangs"]).items():
        is_named = any(r["role"] == "named" for r in readings)
        yield found_by(readings, 0.95 if is_named else 0.9, {"folder": folder})


@rule("folder-not-shared", reads=("machine.folder_shared",))
def folder_not_shared(s: Situation) -> Iterator[Found]:
    """One finding a folder."""
    blind = [r for r in s.readings.of("machine.folder_shared") if r["sees"] is False]
    for folder, readings in _by_folder(blind).items():
        ranks = ranks_of(readings)
        words = {
            "who": f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{' ...' * (len(ranks) > 8)}",
            "writer": readings[0]["writer_rank"],
            "folder": folder,
        }
        yield found_by(readings, 0.85, words)


@rule("folder-slow", reads=("machine.folder",))
def folder_slow(s: Situation) -> Iterator[Found]:
    """One finding a folder, with the slowest speed."""
    slow = [r for r in s.readings.of("machine.folder") if (r.number("write_mb_per_s") or 1e9) < _SLOW_MB_PER_S]
    for folder, readings in _by_folder(slow).items():
        speed = min(r.number("write_mb_per_s") or 0.0 for r in readings)
        minutes = _CHECKPOINT_BYTES / 1e6 / max(speed, 0.01) / 60
        words = {"folder": folder, "speed": f"{speed:.3g}", "minutes": f"{minutes:.0f}"}
        yield found_by(readings, 0.7, words)


@rule("folder-unusable", reads=("machine.folder",))
def folder_unusable(s: Situation) -> Iterator[Found]:
    """One finding a folder and problem, the hosts that agree folded into one."""
    found: dict[tuple[str, str], tuple[float, list[Reading]]] = {}
    for reading in s.readings.of("machine.folder"):
        problem, confidence = _problem(reading)
        if problem:
            found.setdefault((reading.subject, problem), (confidence, []))[1].append(reading)
    for (folder, problem), (confidence, readings) in found.items():
        yield found_by(readings, confidence, {"folder": folder, "problem": problem})


def _problem(reading: Reading) -> tuple[str, float]:
    """What is wrong with a folder, and how sure it is that it costs the job something; empty: nothing."""
    is_named = reading["role"] == "named"
    free, inodes, total = reading.number("free_bytes"), reading.number("inodes_free"), reading.number("size_bytes")
    if reading["hangs"]:
        return "", 0.0
    if reading["problem"]:
        return (f"cannot be used: {reading.text('problem')}", 0.92) if is_named else ("", 0.0)
    if is_named and reading["is_read_only"]:
        return "is on a file system that is mounted read-only", 0.93
    is_full = reading.number("write_errno") in _NO_SPACE or (free is not None and total and free < _FULL)
    if is_full and not reading["is_read_only"]:
        return f"is full ({size(free or 0)} free)", 0.93 if is_named else 0.75
    if inodes is not None and inodes < _FEW_INODES and not reading["is_read_only"]:
        return f"has room for {inodes:g} more files only (inodes)", 0.93 if is_named else 0.75
    if not is_named:
        return "", 0.0
    if reading["is_writable"] is False or reading["write_problem"]:
        return f"cannot be written ({reading.text('write_problem') or 'permission denied'})", 0.93
    if free is not None and total and free < min(_NEARLY_FULL, 0.05 * total):
        return f"is nearly full ({size(free)} free)", 0.75
    return "", 0.0


@rule("kernel-oom-kill", reads=("machine.kernel_log",))
def kernel_oom_kill(s: Situation) -> Found | None:
    """A note for all hosts together, on kills within the last hour."""
    killed = [
        r
        for r in s.readings.of("machine.kernel", subject="kernel.oom_kill")
        if _age_s(r) < _HOUR_S and _A_TRAINING.search(r.text("name"))
    ]
    if not killed:
        return None
    last = min(killed, key=_age_s)
    return found_by(killed, 0.6, {"name": last["name"], "ago": ago(_age_s(last))}, culprits=())


@rule("kernel-stuck", reads=("machine.kernel_log",))
def kernel_stuck(s: Situation) -> Iterator[Found]:
    """One finding for all hosts with the same trouble."""
    back = {(r.host, r.text("name")): _age_s(r) for r in s.readings.of("machine.kernel", subject="kernel.server_back")}
    for kind in _KERNEL_TROUBLE:
        seen = [r for r in s.readings.of("machine.kernel", subject=kind) if _still_matters(r, back)]
        if seen:
            last = min(seen, key=_age_s)
            name = f" ({last['name']})" if last["name"] else ""
            words = {"name": name, "ago": ago(_age_s(last))}
            confidence = 0.85 if kind == "kernel.server_lost" else 0.75
            yield found_by(seen, confidence, words, say=kind.removeprefix("kernel."))


def _still_matters(reading: Reading, back: dict[tuple[str, str], float]) -> bool:
    """Servers that came back do not, nor do hours that are over."""
    if reading.subject == "kernel.server_lost":
        return back.get((reading.host, reading.text("name")), float("inf")) > _age_s(reading)
    return reading.subject == "kernel.disk_error" or _age_s(reading) < _HOUR_S


@rule("no-tracing", reads=("machine.tracing",))
def no_tracing(s: Situation) -> Found | None:
    """A note for all hosts together."""
    blind = [
        r
        for r in s.readings.of("machine.tracing")
        if r.text("problem") or ((r.number("scope") or 0) >= _WITH_CAPABILITY_ONLY and not r["has_capability"])
    ]
    return found_by(blind, 0.5, {}, culprits=()) if blind else None


@rule("slow-in-check", reads=("collectives.suite",))
def slow_in_check(s: Situation) -> Iterator[Found]:
    """One finding for the slow ranks, one for the collectives."""
    slow, ranks = s.readings.of("collectives.slow_rank"), ranks_of(s.readings.of("collectives.slow_rank"))
    if slow:
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        words = {"who": who, "ratio": max(slow, key=_ratio).text("ratio")}
        yield Found(0.8, ranks, cite(slow), words, say="rank", victims=())
    slower = [r for r in s.readings.of("collectives.ratio") if r["is_slower"] is True]
    if slower:
        worst = max(slower, key=_ratio)
        count = f"{len(slower)} collective{'s' * (len(slower) > 1)}"
        yield Found(
            0.8, (), cite(slower), {"count": count, "which": worst.subject, "ratio": worst.text("ratio")}, "all"
        )


def _ratio(reading: Reading) -> float:
    return reading.number("ratio") or 0.0


@rule("kernel-link-flaps", reads=("machine.kernel_log", "setup.job"))
def kernel_link_flaps(s: Situation) -> Iterator[Found]:
    """Each link, where the job has more than one node."""
    if not any((job.number("nodes") or 0) > 1 for job in s.readings.of("setup.job")):
        return
    for reading in s.readings.of("machine.kernel", subject="kernel.link_down"):
        if (reading.number("count") or 0) >= _FLAPS:
            words = {**reading.fields, "age": ago(_age_s(reading))}
            yield found_by([reading], 0.75, words)


@rule("locked-memory", reads=("machine.limit",))
def locked_memory(s: Situation) -> Found | None:
    """All ranks that are limited."""
    short = [
        r
        for r in s.readings.of("machine.limit", subject="memlock")
        if (r.number("rdma_devices") or 0) > 0
        and not r["is_exempt"]
        and (r.number("soft") or _ENOUGH_LOCKED) < _ENOUGH_LOCKED
    ]
    if not short:
        return None
    has_devices = any((r.number("gpus") or 0) > 0 for r in short)
    least = size(min(r.number("soft") or 0 for r in short))
    return found_by(short, 0.9 if has_devices else 0.75, {"size": least})
