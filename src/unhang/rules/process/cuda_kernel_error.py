"""Rule: a kernel on a device failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import GPU_OOM, KERNEL_ERROR, FirstException, describe_first, first_exception
from unhang.rules.line_rule import quote

_KINDS = ("cuda.assertion", "cuda.watchdog_error", "cuda.kernel_error")
_WATCHDOG = """\
{'loss': 0.2786, 'grad_norm': 0.59, 'learning_rate': 1.9e-07, 'epoch': 3.73}
[rank7]:[E ProcessGroupNCCL.cpp:1182] [Rank 7] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
"""
_ASSERTION = """\
../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [180,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [180,0,0], thread: [65,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
[rank3]: RuntimeError: CUDA error: device-side assert triggered
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
"""


class CudaKernelError(Rule):
    """A kernel on a device failed: an assertion in it, or an access to memory that is not its own.

    What it detects:
        The first failure of the job is an assertion in a kernel or an illegal access, told by the exception, by the kernel's own
        lines, or by the watchdog of NCCL, which only finds the broken context and is not its cause.

    Why it hangs:
        After such an error every call to the device fails on that rank. It dies, or hangs in its own clean-up; its peers wait.

    How to confirm:
        Run once with `CUDA_LAUNCH_BLOCKING=1`: without it the traceback shows a later call, not the kernel at fault.

    How to fix:
        For an assertion on an index: look at labels, token ids and positions of that batch (a tokenizer larger than the embedding, a
        label outside of the classes). For an illegal access: the custom kernel or library that the blocking run names.

    Sources:
        CUDA documentation, errors 700, 710, 716, 719; torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
    """

    id = "cuda-kernel-error"
    cause = "cuda-kernel-error"
    EXAMPLES: ClassVar = (
        Fires(log_case(_WATCHDOG), (7,)),
        Fires(log_case(_ASSERTION), (3,)),
        Fires(
            make_case(
                {},
                errors={1: "RuntimeError: CUDA error: device-side assert triggered@main:9>step:31"},
                hang=None,
                exit_code=1,
            ),
            (1,),
            31,
        ),
        Quiet(log_case("[rank1]: RuntimeError: CUDA error: out of memory"), "memory that ran out is another thing"),
        Quiet(log_case("[rank1]: RuntimeError: CUDA error: invalid device ordinal"), "a device that is not there"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the first failure is a kernel's."""
        events = s.events.of(*_KINDS)
        first = first_exception(s)
        assertion = next((e["assertion"] for e in events if e["assertion"]), "")
        what = (
            f"failed in a kernel on the device: assertion `{assertion}`"
            if assertion
            else "failed in a kernel on the device"
        )
        sure = 0.97 if assertion else 0.92
        if first is not None and KERNEL_ERROR.search(first.text):
            ranks = first.ranks or _ranks(events)
            told = FirstException(first.error, ranks, first.failures, first.seen)
            weak = "EXECUTION_FAILED" in first.text and len(events) < 2
            yield describe_first(s, self, told, 0.75 if weak else sure, what, _FIXES, _WHY)
        elif events and (first is None or _is_before(events[0], first)) and not (first and GPU_OOM.search(first.text)):
            ranks = _ranks(events)
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{w.name_ranks(ranks) if ranks else 'a rank'} {what}",
                confidence=sure if any(e["what"] or assertion for e in events) else 0.75,
                culprit_ranks=ranks,
                victim_ranks=s.others(ranks) if ranks else (),
                because=_WHY,
                evidence=quote(events),
                fixes=_FIXES,
            )


_WHY = (
    "The context of the device is broken from then on. The watchdog of NCCL and any later call only report it; timeouts and lost "
    "connections on other ranks are its echo."
)


def _is_before(event: LogEvent, first: FirstException) -> bool:
    return first.seen is not None and event.order <= first.seen.order


def _ranks(events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks by prefix, else by the watchdog's own number, which is the global one in the default group."""
    told = {e.rank for e in events if e.rank is not None}
    if not told:
        told = {
            n
            for e in events
            if (n := e.number("group_rank")) is not None
            and "default_pg" in e.text + "default_pg" * ("[PG" not in e.text)
        }
    return tuple(sorted(told))


_FIXES = (
    Fix(
        "Find the kernel at fault",
        command="CUDA_LAUNCH_BLOCKING=1 <the same command>",
        verify="the traceback names the call whose kernel failed; every step is slower meanwhile",
        undo="unset CUDA_LAUNCH_BLOCKING",
    ),
    Fix(
        "Check the indexes of the batch before they reach the device",
        patch="assert ids.min() >= 0 and ids.max() < embedding.num_embeddings   # labels against the number of classes likewise",
        verify="the assertion in Python names the batch",
        undo="remove the assertion",
    ),
    Fix(
        "Does not help: a longer timeout or a restart of the watchdog",
        setting="leave TORCH_NCCL_* as they are: the watchdog only reports what the kernel did",
        verify="the same error comes again",
        undo="nothing is changed",
    ),
)
