"""Rule: /dev/shm is too small for what the job will put there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import NEIGHBOUR_BYTES, SHARE, Needs, needs_of, size
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of

_DEFAULT = 64 << 20
_SMALL_BATCH, _MEDIUM_BATCH = 1_000_000, 8_000_000


@dataclass(frozen=True)
class _Short:
    reading: Reading
    needs: Needs
    have: float
    wants: str
    confidence: float


class ShmForecast(ReadingRule):
    """Shared memory is smaller than the forecast of loaders and NCCL.

    What it detects:
        /dev/shm is not there, or cannot be written; or it has less free than ranks x (workers x prefetched batches + 2) x bytes
        of a batch, or less than NCCL needs between neighbours. Where the size of a batch is unknown: how large it may be.

    Why it hangs:
        A worker or rank that touches a page which cannot be had is killed by SIGBUS; its peers wait for it.

    How to confirm:
        `df -h /dev/shm` inside the container: 64 MB is the default of Docker and Kubernetes.

    How to fix:
        `--shm-size` or `--ipc=host`; an emptyDir of medium Memory on /dev/shm; fewer workers or prefetched batches.

    Sources:
        NCCL user guide, troubleshooting: shared memory; PyTorch documentation, multiprocessing.
    """

    id = "shm-forecast"
    cause = "shm-too-small"
    reads = ("machine.shared_memory", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read(
                    "machine.shared_memory /dev/shm", size_bytes=_DEFAULT, free_bytes=_DEFAULT, is_writable=True, gpus=8
                ),
                read("setup.job here", ranks_per_node=8, workers=4, world_size=16),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=8 << 30, free_bytes=8 << 30, is_writable=True),
                read("setup.job plan", ranks_per_node=8, workers=8, batch_bytes=100_000_000),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=8 << 30, free_bytes=8 << 30, is_writable=False),
                read("setup.job here", ranks_per_node=1, workers=2),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=_DEFAULT, free_bytes=_DEFAULT, is_writable=True),
                read("setup.job here", ranks_per_node=1, world_size=1),
            ),
            "one process, and nobody said that it loads data by workers",
        ),
        Quiet(
            readings_case(
                read(
                    "machine.shared_memory /dev/shm", size_bytes=16 << 30, free_bytes=16 << 30, is_writable=True, gpus=8
                ),
                read("setup.job plan", ranks_per_node=8, workers=8, batch_bytes=8_000_000),
            ),
            "room for all batches",
        ),
        Quiet(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=_DEFAULT, free_bytes=_DEFAULT, is_writable=True),
                read("setup.job here", ranks_per_node=4, workers=0, world_size=4),
            ),
            "no workers and no devices: nothing is put there",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts where it is too small."""
        short = [x for r in s.readings.of("machine.shared_memory") if (x := _short(r, needs_of(s, r))) is not None]
        if not short:
            return
        worst = max(short, key=lambda x: x.confidence)
        readings = [x.reading for x in short]
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"/dev/shm {worst.needs.place('shm_bytes', readings)} {worst.wants}",
            confidence=worst.confidence,
            culprit_ranks=ranks_of(readings),
            because="Loaders hand over whole batches there, and NCCL about 10 MB for each pair of neighbours. A process that "
            "gets no page is killed by SIGBUS, without any other message."
            + (" 64 MB is what containers get by default." if worst.have <= _DEFAULT else ""),
            evidence=cite([worst.needs.job, *readings]),
            fixes=_FIXES,
        )


def _short(reading: Reading, needs: Needs) -> _Short | None:
    """Whether one host has too little, and how sure that is."""
    planned = needs.planned("shm_bytes")
    have = planned or reading.number("free_bytes") or 0.0
    if not planned and reading["is_writable"] is False:
        return _Short(reading, needs, have, "cannot be written", 0.93) if needs.workers else None
    devices = needs.job.number("gpus_per_node") or reading.number("gpus") or 0
    nccl = NEIGHBOUR_BYTES * needs.ranks if devices and needs.ranks > 1 else 0
    has = f"has {size(have)}{'' if planned else ' free'}"
    if needs.loader_bytes:
        wanted = needs.loader_bytes + nccl
        if wanted > SHARE * have:
            text = f"{has}; {needs.told}, {needs.batches} batches of {size(needs.batch_bytes or 0)} each, need {size(wanted)}"
            return _Short(reading, needs, have, text, 0.93 if wanted > have else 0.75)
    elif needs.workers:
        most = max(0.0, have - nccl) / (needs.ranks * needs.batches)
        if most < _MEDIUM_BATCH:
            beside = f" beside the {size(nccl)} of NCCL" if nccl else ""
            text = f"{has}: with {needs.told}, there is room for batches of {size(most)} at most{beside}"
            return _Short(reading, needs, have, text, 0.85 if most < _SMALL_BATCH else 0.75)
    if nccl > SHARE * have:
        text = f"{has}; NCCL may need {size(nccl)} between {needs.ranks} ranks"
        return _Short(reading, needs, have, text, 0.75)
    return None


_FIXES = (
    Fix(
        "Give the container more shared memory",
        setting="docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory mounted on /dev/shm; "
        "without a container: mount -o remount,size=16G /dev/shm",
        verify="df -h /dev/shm inside the container, then unhang check",
        undo="remove the option",
    ),
    Fix(
        "Without access to the container's options",
        setting="DataLoader(num_workers=0), or fewer workers and prefetch_factor=1",
        verify="unhang check --plan with the new numbers",
        undo="restore num_workers",
    ),
)
