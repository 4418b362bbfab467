"""The area `machine`: limits, memory, folders, clocks, and what the kernel has said. One file for each fact."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unhang.check.areas import Context
from unhang.check.machine import clock, folders, kernel_log, limits, memory
from unhang.model import Reading, Unavailable

SCOPE = "rank"
LIMIT_S = 25.0

Read = Callable[[], Iterator[Reading]]
OF_EACH_RANK: dict[str, Read] = {"machine.cores": limits.cores, "machine.limit": limits.limits}
OF_THE_HOST: dict[str, Read] = {
    "machine.memory": memory.memory,
    "machine.shared_memory": memory.shared_memory,
    "machine.shm_leftovers": memory.shm_leftovers,
    "machine.processes": limits.processes,
    "machine.tracing": limits.tracing,
    "machine.kernel_log": kernel_log.read,
}


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """What belongs to each rank on every rank, and what the host has in common on one rank of it."""
    even = clock.EvenClock()
    yield from _each(OF_EACH_RANK)
    if context.member.is_first_on_host:
        yield from _each(OF_THE_HOST)
        yield from folders.read_folders(context)
        yield from even.read()


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """Clocks against each other, and whether all see the same folders."""
    if context.participants.is_alone:
        reason = "one process; torchrun or srun starts it on all nodes"
        yield from (Unavailable(kind, reason) for kind in ("machine.clock_offset", "machine.folder_shared"))
        return
    yield from clock.read_offset(context.participants)
    yield from folders.read_shared(context)


def _each(facts: dict[str, Read]) -> Iterator[Reading | Unavailable]:
    """What is read, or why it cannot be."""
    for kind, read in facts.items():
        try:
            yield from read()
        except (OSError, ValueError, RuntimeError) as error:
            yield Unavailable(kind, str(error)[:300])
