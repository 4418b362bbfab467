"""What a job will need of one host at least: descriptors, memory, shared memory, processes.

Measured with torch 2.13 on Linux: a rank that has joined its group, and a forked loader worker beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unhang.analyze.situation import Situation
from unhang.model import Reading
from unhang.rules.readings import hosts_of

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
        return "of the plan" if self.planned(name) else f"on {hosts_of(readings)}"

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
