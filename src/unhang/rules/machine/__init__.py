"""Rules on readings: what was read on the machines, by subject; loaded only where something was read.

Here is what they share: citing readings, whose they are, each device once, and what a job will need of one host at least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unhang.analyze.situation import Situation
from unhang.model import Case, EvidenceLine, Reading, grouped
from unhang.rules.base import Found, unread

_MOST_QUOTED = 8


def as_line(reading: Reading) -> str:
    """A reading as one line: `machine.limit nofile soft=1024 hard=4096`."""
    fields = " ".join(f"{name}={value}" for name, value in reading.fields.items() if value is not None)
    return " ".join(part for part in (reading.kind, reading.subject, fields) if part)


def cite(readings: Iterable[Reading], most: int = _MOST_QUOTED) -> tuple[EvidenceLine, ...]:
    """Readings as evidence; those that read the same are cited once, with the first who saw it."""
    found: dict[tuple[str, str], EvidenceLine] = {}
    for reading in readings:
        line = EvidenceLine(reading.where, as_line(reading)[:300])
        if len(found) < most:
            found.setdefault((reading.host, line.text), line)
    return tuple(found.values())


def ranks_of(readings: Iterable[Reading]) -> tuple[int, ...]:
    """The ranks that these readings are about, in ascending order."""
    return tuple(sorted({r.rank for r in readings if r.rank is not None}))


def hosts_of(readings: Iterable[Reading]) -> str:
    """The hosts that these readings are about, for people: `node3`, `node3 and node7`, `node3 and 12 others`."""
    hosts = sorted({r.host for r in readings if r.host})
    if len(hosts) <= 2:
        return " and ".join(hosts) or "this machine"
    return f"{hosts[0]} and {len(hosts) - 1} others"


def of_each_rank(readings: Iterable[Reading]) -> dict[int | None, dict[str, Reading]]:
    """What each rank has read, by subject."""
    of_rank = grouped((r.rank, r) for r in readings)
    return {rank: {r.subject: r for r in own} for rank, own in of_rank.items()}


def found_by(
    readings: Sequence[Reading], confidence: float, words: Mapping[str, object], say: str = "", **more: Any
) -> Found:
    """What these readings show: their ranks are the culprits, {hosts} their hosts; `more`: other fields of `Found`."""
    more = {"culprits": ranks_of(readings), "evidence": cite(readings), "victims": (), **more}
    return Found(confidence, words={"hosts": hosts_of(readings), **words}, say=say, **more)


def spans_hosts(s: Situation) -> bool:
    """Whether the job runs, or will run, on more than one host."""
    return not is_only_planned(s) or any((r.number("nodes") or 0) > 1 for r in s.readings.of("setup.job"))


def is_only_planned(s: Situation) -> bool:
    """Whether the other hosts are not there: this one may not be one of them."""
    return len({r.host for r in s.readings.of("network.")}) < 2


def compares(kind: str) -> Callable[[Case], str]:
    """What a rule lacks that compares the ranks in what they have read of this kind: the reading, or a second rank."""

    def lacks(case: Case) -> str:
        alone = f"{kind}: one process has nothing to compare with; torchrun or srun starts it on all ranks"
        return unread(case, (kind,)) or (alone if len({r.rank for r in case.readings if r.kind == kind}) < 2 else "")

    return lacks


_MOST_NAMED = 4


def devices_of(s: Situation) -> tuple[Reading, ...]:
    """Every device that was read in detail, once, though several ranks of a host may have read it."""
    found: dict[tuple[str, str], Reading] = {}
    for reading in s.readings.of("devices.device"):
        found.setdefault((reading.host, reading.text("uuid") or reading.subject), reading)
    return tuple(found.values())


def users_of(s: Situation, devices: Iterable[Reading]) -> tuple[int, ...]:
    """The ranks that take these devices by convention; else those that have read them."""
    ranks: set[int] = set()
    for device in devices:
        users = [r for r in s.readings.of("devices.visible") if r["own"] and r["own"] == device["uuid"]]
        ranks |= set(ranks_of([r for r in users if r.host == device.host] or [device]))
    return tuple(sorted(ranks))


def named(devices: Sequence[Reading]) -> str:
    """`GPU 3 on node1`, `GPUs 3, 5 on node1`, or `4 devices on node1 and 2 others`."""
    if len({d.host for d in devices}) > 1 or len(devices) > _MOST_NAMED:
        return f"{len(devices)} devices on {hosts_of(devices)}"
    numbers = ", ".join(d.subject.removeprefix("GPU ") for d in devices)
    return f"GPU{'s' * (len(devices) > 1)} {numbers} on {hosts_of(devices)}"


def found_on(
    s: Situation,
    devices: Sequence[Reading],
    confidence: float,
    words: Mapping[str, object] | None = None,
    evidence: Sequence[EvidenceLine] = (),
    **more: Any,
) -> Found:
    """What is wrong with these devices, which are {devices} in the card; `more`: other fields of `Found`."""
    words = {"devices": named(devices), **(words or {})}
    return Found(confidence, users_of(s, devices), evidence or cite(devices), words, **{"victims": (), **more})


def majority(values: Iterable[str]) -> str:
    """What more than half have, of three or more; else nothing: of two nobody knows which is the odd one."""
    known = list(values)
    if len(known) < 3:
        return ""
    value, count = Counter(known).most_common(1)[0]
    return value if 2 * count > len(known) else ""


def less_than_peers(devices: Iterable[Reading], name: str) -> tuple[tuple[Reading, ...], float]:
    """Devices with less of something than most of their model have; and how much those have.

    Nothing where there is no majority: what many have in common is how the machines are built.
    """
    models = grouped((device.text("name"), device) for device in devices if device.number(name) is not None)
    less: list[Reading] = []
    most = 0.0
    for same in models.values():
        usual = majority(d.text(name) for d in same)
        odd = [d for d in same if usual and (d.number(name) or 0.0) < float(usual)]
        less += odd
        most = float(usual) if odd else most
    return tuple(less), most


# Measured with torch 2.13 on Linux: a rank that has joined its group, and a forked loader worker beside it.
RANK_BYTES, WORKER_BYTES = 220_000_000, 12_000_000
NEIGHBOUR_BYTES = 10_000_000  # of shared memory that NCCL takes for each pair of neighbours without a direct way
RANK_THREADS, WORKER_THREADS = 8, 3
RANK_FILES, LOADER_FILES, WORKER_FILES = 32, 2, 4
STORE_FILES, PEER_FILES = 2, 1  # connections of rank 0, for each rank of the job
SHARE = 0.8  # a forecast above this share of what is there is a risk: other things need some, too
DEFAULT_PREFETCH, HELD_BATCHES = 2, 2


@dataclass(frozen=True)
class Needs:
    """What is known of a job, seen from one host. `workers` and `batch_bytes` are None where nobody told them."""

    ranks: int
    world: int
    threads: int | None
    workers: int | None
    prefetch: int
    batch_bytes: int | None
    is_plan: bool
    job: Reading

    @property
    def batches(self) -> int:
        """Batches of one rank that exist at the same time: in the queues of its workers, in use, and the next."""
        return (self.workers or 0) * self.prefetch + HELD_BATCHES if self.workers else 0

    @property
    def loader_bytes(self) -> int | None:
        """Shared memory that batches take on this host; None where workers or their batches are unknown."""
        if self.workers is None or (self.workers and self.batch_bytes is None):
            return None
        return self.ranks * self.batches * (self.batch_bytes or 0)

    @property
    def memory_bytes(self) -> int:
        """Memory of all processes on this host, before the first parameter of a model."""
        return self.ranks * (RANK_BYTES + (self.workers or 0) * WORKER_BYTES) + (self.loader_bytes or 0)

    @property
    def files(self) -> int:
        """Descriptors of the process that needs most: rank 0, with at least one tensor in each batch."""
        loader = LOADER_FILES + WORKER_FILES * self.workers + self.batches if self.workers else 0
        return RANK_FILES + loader + (STORE_FILES + PEER_FILES) * (self.world if self.world > 1 else 0)

    @property
    def processes(self) -> int:
        """Processes and threads on this host."""
        return self.ranks * (RANK_THREADS + (self.threads or 1) + (self.workers or 0) * WORKER_THREADS)

    def planned(self, name: str) -> int | None:
        """A value that the plan gives in place of what was read."""
        value = self.job.number(name) if self.is_plan else None
        return None if value is None else int(value)

    def place(self, name: str, readings: Iterable[Reading]) -> str:
        """Where a value is from, for people."""
        return "in the plan" if self.planned(name) else f"on {hosts_of(readings)}"

    @property
    def who(self) -> str:
        """Ranks and workers, for people."""
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return ranks if not self.workers else f"{ranks} with {self.workers} worker{'s' * (self.workers > 1)} each"


def needs_of(s: Situation, reading: Reading) -> Needs:
    """What the job needs of the host of a reading. Without a set-up: one rank."""
    jobs = s.readings.of("setup.job")
    job = next((j for j in jobs if j.rank == reading.rank), jobs[0] if jobs else Reading("setup.job"))

    def number(name: str) -> int | None:
        value = job.number(name)
        return None if value is None else int(value)

    here = len({r.rank for r in s.readings.of("machine.cores") if r.host == reading.host}) or 1
    return Needs(
        ranks=number("ranks_per_node") or here,
        world=number("world_size") or 1,
        threads=number("threads"),
        workers=number("workers"),
        prefetch=number("prefetch") or DEFAULT_PREFETCH,
        batch_bytes=number("batch_bytes"),
        is_plan=job.subject == "plan",
        job=job,
    )


def size(count: float) -> str:
    """Bytes for people."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def ago(seconds: float) -> str:
    """An age for people."""
    if seconds >= 7200:
        return f"{seconds / 3600:.0f} hours ago"
    return f"{seconds / 60:.0f} minutes ago" if seconds >= 120 else f"{seconds:.0f} s ago"
