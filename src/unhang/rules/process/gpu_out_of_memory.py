"""Rule: a device ran out of memory on one rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules.base import Rule
from unhang.rules.failure import GPU_OOM, describe_failure, same_failures, text_of


class GpuOutOfMemory(Rule):
    """A device ran out of memory on some rank.

    What it detects:
        The first failure of the job is an out-of-memory error of the device.

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
    needs = ("ranks",)
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
        Quiet(
            make_case({}, errors={0: "MemoryError: @main:40"}, hang=None, exit_code=1), "host memory is another thing"
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the primary failure is OOM."""
        first = s.primary_failure
        if first is not None and GPU_OOM.search(text_of(first)):
            yield describe_failure(s, self, same_failures(s, first), 0.96, "ran out of device memory", _FIXES)


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
)
