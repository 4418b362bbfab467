"""Rule: shared memory (/dev/shm) is too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule

_NAMED = ("shm.no_space", "shm.worker_bus_error")
_FAILED = ("shm.segment_failed", "shm.torch_failed")
_NEAR = 4
_SIGNALS = ("shm.bus_error", "shm.bus_error_exit")
_BESIDE = 20  # lines within which another error of CUDA explains that a segment could not be made


class ShmTooSmall(LineRule):
    """Shared memory ran out.

    What it detects:
        NCCL or torch say that a segment in /dev/shm cannot be made; loader workers or ranks die of a bus error (signal 7), which
        is what a page of shared memory that cannot be had ends in.

    Why it hangs:
        The rank or its worker is killed at the first write; the peers wait in the set-up of NCCL or in the next collective.

    How to confirm:
        `df -h /dev/shm` inside the container: 64 MB is the default of Docker and Kubernetes. Stale `nccl-*` or `torch_*` files
        of killed jobs fill it as well.

    How to fix:
        `--shm-size` or `--ipc=host`; an emptyDir of medium Memory on /dev/shm; remove stale files; fewer workers.

    Sources:
        NCCL user guide, troubleshooting: shared memory; PyTorch documentation, multiprocessing.
    """

    id = "shm-too-small"
    cause = "shm-too-small"
    kinds: ClassVar = (*_NAMED, *_FAILED, *_SIGNALS)
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "node-a:9847:6288 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-q3TTbA to 9637892 bytes, error: "
                "No space left on device (28)\nnode-a:9847:1797 [2] proxy.cc:1326 NCCL WARN Socket recv failed\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[node-b:378934:0:382579] Caught signal 7 (Bus error: nonexistent physical address)\n"
                " 2 0x0000000000068d6c ncclGroupEnd()  ???:0\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
                "[rank2]: RuntimeError: DataLoader worker (pid 611) is killed by signal: Bus error. It is possible that dataloader's "
                "workers are out of shared memory. Please try to raise your shared memory limit.\n"
            ),
            (2,),
        ),
        Quiet(
            log_case(
                "[1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n"
                "[1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-NzwJ7O (size 9637888)\n"
            ),
            "the segment was there, the device could not use it",
        ),
        Quiet(log_case("OSError: [Errno 28] No space left on device: '/data/ckpt.pt'\n"), "a full disk"),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Segments that could not be made, and bus errors."""
        cuda = [e.order for e in s.events.of("nccl.cuda_failure")]
        failed = [e for e in s.events.of(*_FAILED) if not any(0 <= e.order - c <= _BESIDE for c in cuda)]
        found = (*s.events.of(*_NAMED, *_SIGNALS), *failed, *_semaphores(s))
        if not found:
            return ()
        beside = s.events.of("shm.default_limit")
        return tuple(sorted((*found, *beside), key=lambda e: e.order))

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks that say so; of a launcher's line its local rank, which is the rank on one node."""
        ranks = {e.rank for e in events if e.rank is not None}
        for event in s.events.of("shm.bus_error_local_rank"):
            number = event.number("local_rank") if event["local_rank"] else event.number("failed")
            if number is not None:
                ranks.add(number)
        return tuple(sorted(ranks))

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Where the line names shared memory; a bare bus error is an inference."""
        kinds = {e.kind for e in events}
        if kinds & set(_NAMED):
            return 0.97
        if kinds & {"shm.torch_failed", "shm.errno_28"}:
            return 0.93
        if "shm.segment_failed" in kinds or ("shm.default_limit" in kinds and kinds & set(_SIGNALS)):
            return 0.9
        is_nccl = s.events.has("shm.frame", "nccl.") and "shm.bus_error" in kinds
        return 0.88 if is_nccl else 0.8

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Who ran out of it."""
        kinds = {e.kind for e in events}
        if "shm.worker_bus_error" in kinds:
            return "loader workers ran out of shared memory (/dev/shm)"
        if kinds & {"shm.no_space", "shm.segment_failed", "shm.torch_failed", "shm.errno_28"}:
            return "a segment of shared memory could not be made: /dev/shm is too small or full"
        return "a rank died of a bus error (signal 7): shared memory (/dev/shm) is too small"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why a bus error means shared memory."""
        text = "Containers get 64 MB of /dev/shm by default; NCCL takes about 10 MB for each pair of neighbours, loaders whole batches."
        if not {e.kind for e in events} & {*_NAMED, *_FAILED, "shm.errno_28"}:
            text += (
                " Writing to a page that the full file system cannot give ends in a bus error, without any other message. A mapped file "
                "that was cut off, or one on a failing disk, would look the same: `df -h /dev/shm` decides."
            )
        return text + " Closed connections and failed receives of other ranks are echoes."

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return _FIXES


def _semaphores(s: Situation) -> list[LogEvent]:
    """A full file system met by a semaphore, which is a file in /dev/shm; anything else may have filled a disk."""
    made = [e.order for e in s.events.of("shm.semaphore")]
    return [e for e in s.events.of("shm.errno_28") if any(0 < e.order - m <= _NEAR for m in made)]


_FIXES = (
    Fix(
        "Give the container more shared memory",
        setting="docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory mounted on /dev/shm",
        verify="df -h /dev/shm inside the container, before and during the job",
        undo="remove the option",
    ),
    Fix(
        "Remove what killed jobs left there",
        command="ls -la /dev/shm; rm /dev/shm/nccl-* /dev/shm/torch_*   # with no job running",
        verify="df /dev/shm shows the space again",
        undo="not needed",
    ),
    Fix(
        "Without access to the container's options",
        setting="num_workers=0 for loaders; NCCL_SHM_DISABLE=1 for NCCL (slower, goes over the network stack)",
        verify="no bus error in the next run",
        undo="unset NCCL_SHM_DISABLE, restore num_workers",
    ),
    Fix(
        "Does not help: more memory for the job",
        setting="the scheduler's memory limit does not change the size of /dev/shm",
        verify="df -h /dev/shm is unchanged",
    ),
)
