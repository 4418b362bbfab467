"""Rule: not enough memory for the processes of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import SHARE, needs_of, size
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of

_GB = 1_000_000_000


class LittleMemory(ReadingRule):
    """The host or the container has less memory left than the processes of the job need at least.

    What it detects:
        What is available, or left below the limit of the control group, is less than torch alone takes in all ranks and
        workers, with the batches that they hold where their size is known; models and data are not counted.

    Why it hangs:
        The kernel kills the largest process, without a message of its own; the other ranks wait for it.

    How to confirm:
        `free -g`; memory.max and memory.current of the control group.

    How to fix:
        More memory, fewer workers, smaller batches; end what else takes memory there.

    Sources:
        Measured with torch 2.13: 220 MB for a rank, 12 MB more for each forked worker.
    """

    id = "little-memory"
    cause = "host-oom"
    reads = ("machine.memory", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.memory", total_bytes=512 * _GB, available_bytes=300 * _GB, left_bytes=1 * _GB),
                read("setup.job here", ranks_per_node=8, world_size=8, workers=4),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.memory", total_bytes=512 * _GB, available_bytes=300 * _GB, left_bytes=300 * _GB),
                read("setup.job plan", ranks_per_node=8, workers=8, batch_bytes=_GB, memory_bytes=100 * _GB),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.memory", total_bytes=8 * _GB, available_bytes=2 * _GB, left_bytes=2 * _GB),
                read("setup.job here", ranks_per_node=1, world_size=1),
            ),
            "a laptop, and one process",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts that have too little."""
        short = []
        for reading in s.readings.of("machine.memory"):
            needs = needs_of(s, reading)
            have = needs.planned("memory_bytes") or reading.number("left_bytes")
            if have is not None and needs.memory_bytes > SHARE * have:
                short.append((needs.memory_bytes / max(have, 1), reading, needs, have))
        if not short:
            return
        ratio, _, needs, have = max(short, key=lambda x: x[0])
        readings = [reading for _, reading, _, _ in short]
        batches = f", {size(needs.loader_bytes)} of it in batches" if needs.loader_bytes else ""
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{needs.told} need {size(needs.memory_bytes)} of memory at least; {size(have)} {needs.place('memory_bytes', readings)}",
            confidence=0.92 if ratio > 1 else 0.75,
            culprit_ranks=ranks_of(readings),
            because=f"Only the processes are counted{batches}; the model, the data and the driver come on top. Where memory "
            "ends, the kernel kills a process without a word in the job's log.",
            evidence=cite([needs.job, *readings]),
            fixes=(
                Fix(
                    "More memory for the job, or fewer workers and smaller batches",
                    setting="Slurm: --mem; Kubernetes: resources.limits.memory; DataLoader(num_workers, prefetch_factor)",
                    verify="unhang check --plan ranks=...,workers=...,batch=... names no lack of memory",
                    undo="restore the former request",
                ),
            ),
        )
