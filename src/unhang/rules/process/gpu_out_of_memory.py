"""Rule: a device ran out of memory on one rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.first_errors import has_fatal_end
from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import GPU_OOM, FirstException, comes_late, describe_first, first_exception
from unhang.rules.line_rule import quote

_KINDS = ("oom.device", "oom.device_library", "nccl.cuda_oom")
_LOG = """\
[rank11]:     out = attention(q, k, v)
[rank11]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has a total capacity of 63.42 GiB of which 1.70 GiB is free.
W1017 16:21:57.292678 2124525 torch/distributed/elastic/multiprocessing/api.py:908] Sending process 4568363 closing signal SIGTERM
"""
_SKIPPED = """\
step 10, loss 0.5
CUDA out of memory. Tried to allocate 2.00 GiB
step 11, loss 0.4
step 12, loss 0.4
step 13, loss 0.3
"""


class GpuOutOfMemory(Rule):
    """A device ran out of memory on some rank.

    What it detects:
        The first failure of the job is an out-of-memory error of the device: torch's, or that of NCCL, cuBLAS or cuDNN, which
        allocate beside torch and find nothing left. What the peers print of lost connections is often printed first.

    Why it hangs:
        The rank is gone, or skipped the step after catching the error; its peers wait in the next collective.

    How to confirm:
        The error says how much was asked for. If only rank 0 fails, look for work that only rank 0 does.

    How to fix:
        A smaller batch or activation checkpointing. `CUDA_MEMORY_FRACTION` does nothing. To skip a step after OOM, all ranks have
        to decide together.

    Sources:
        PyTorch documentation, CUDA memory management.
    """

    id = "gpu-out-of-memory"
    cause = "gpu-oom"
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {},
                errors={0: "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB@main:40"},
                hang=None,
                exit_code=1,
            ),
            (0,),
            40,
        ),
        Fires(log_case(_LOG), (11,)),
        Quiet(log_case(_SKIPPED), "the step was skipped and the job went on"),
        Quiet(
            make_case({}, errors={0: "MemoryError: @main:40"}, hang=None, exit_code=1), "host memory is another thing"
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the first failure is OOM, as an exception or as a line of a library."""
        first = first_exception(s)
        skipped = {e.order for e in s.events.of("learn.step_skipped")}
        if first is not None and first.seen is not None and first.seen.order in skipped:
            return
        if first is not None and GPU_OOM.search(first.text):
            ranks = first.ranks or _by_device(s.events.of(*_KINDS))
            told = FirstException(first.error, ranks, first.failures, first.seen)
            yield describe_first(
                s, self, told, 0.7 if comes_late(s, first) else 0.96, "ran out of device memory", _FIXES
            )
            return
        events = tuple(e for e in s.events.of(*_KINDS) if e.order not in skipped and "1EB" not in e.text)
        if events and (first is None or _is_before(events[0], first)) and _is_the_end(s, events):
            ranks = tuple(sorted({e.rank for e in events if e.rank is not None})) or _by_device(events)
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{w.name_ranks(ranks) if ranks else 'a rank'} ran out of device memory",
                confidence=0.95,
                culprit_ranks=ranks,
                victim_ranks=s.others(ranks) if ranks else (),
                because="An allocation on the device failed. Lost connections and timeouts on other ranks, printed before or after, "
                "are what the peers saw of it.",
                evidence=quote(events),
                fixes=_FIXES,
            )


def _is_before(event: LogEvent, first: FirstException) -> bool:
    return first.seen is not None and event.order <= first.seen.order + 1


def _is_the_end(s: Situation, events: tuple[LogEvent, ...]) -> bool:
    """Whether nobody went on after it: a step that was skipped is no end."""
    after = [e for e in s.events.of("progress.step", "progress.bar", "learn.loss_finite") if e.order > events[-1].order]
    return len(after) <= 2 or (has_fatal_end(s) and len(after) <= 40)


def _by_device(events: tuple[LogEvent, ...]) -> tuple[int, ...]:
    """The ranks by the devices' numbers, where one of them is not 0.

    Processes that each see one device call it 0: then the number tells nothing.
    """
    devices = {n for e in events if (n := e.number("device")) is not None}
    return tuple(sorted(devices)) if devices and devices != {0} and max(devices) < 8 else ()


_FIXES = (
    Fix(
        "Use less memory on that rank",
        patch="smaller micro-batch with more accumulation, activation checkpointing; map_location='cpu' when rank 0 loads checkpoints",
        verify="torch.cuda.max_memory_allocated() per rank",
        undo="revert the edit",
    ),
    Fix(
        "Against fragmentation",
        setting="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        verify="unhang run -- <the same command>",
        undo="unset PYTORCH_CUDA_ALLOC_CONF",
    ),
    Fix(
        "Does not help: CUDA_MEMORY_FRACTION, or a longer timeout",
        setting="leave both: no library reads the first, and a rank that is gone comes to no collective",
        verify="the same allocation fails again",
        undo="nothing is changed",
    ),
)
