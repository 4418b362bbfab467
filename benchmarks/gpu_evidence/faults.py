"""The faults: who is to blame, for which call, and what an expert would call it. The program itself is in `job.py`."""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY = "none"
CULPRIT = 1  # the rank that goes wrong, but for work of rank 0


@dataclass(frozen=True)
class Fault:
    """One labelled job.

    Args:
        causes: Any of these names is right; the first is the expected one. HEALTHY: nothing may be found.
        culprits: The ranks to blame.
        op: The call in which the others wait, or which disagrees.
        needs_cuda: It cannot happen without a device.
        is_symmetric: Of two ranks nobody can tell which one is wrong.
    """

    name: str
    causes: tuple[str, ...]
    culprits: tuple[int, ...] = (CULPRIT,)
    op: str = "all_reduce"
    needs_cuda: bool = False
    is_symmetric: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return self.causes == (HEALTHY,)

    def truth(self, ranks: int) -> dict[str, object]:
        """What is written to truth.json."""
        return {
            "fault": self.name,
            "cause": self.causes[0],
            "also_right": list(self.causes[1:]),
            "culprit_ranks": list(self.culprits),
            "op": self.op,
            "ranks": ranks,
            "either_rank": self.is_symmetric and ranks == 2,
        }


# The quickest to say something come first: what the time does not suffice for is at the end.
FAULTS = (
    Fault("healthy", (HEALTHY,), (), ""),
    Fault("missing-call", ("code-divergence",), op="all_gather", is_symmetric=True),
    Fault("long-rank0-work", ("slow-rank0-work",), (0,), "barrier"),
    Fault("size-mismatch", ("size-mismatch",), is_symmetric=True),
    Fault("gil-held", ("rank-stuck-in-user-code",)),
    Fault("device-assert", ("cuda-kernel-error",), needs_cuda=True),
    Fault("endless-kernel", ("unknown", "rank-stuck-in-user-code", "cuda-kernel-error"), needs_cuda=True),
    Fault("exception", ("user-exception",)),
    Fault("stopped", ("rank-frozen",)),
    Fault("killed", ("rank-crashed-earlier", "external-signal")),
    Fault("other-order", ("collective-order-race", "code-divergence"), is_symmetric=True),
    Fault("other-order-of-groups", ("collective-order-race", "code-divergence"), is_symmetric=True),
    Fault("subgroup-not-by-all", ("code-divergence",), op="new_group"),
    Fault("extra-call", ("code-divergence",), op="all_gather", is_symmetric=True),
    Fault("dtype-mismatch", ("size-mismatch",), is_symmetric=True),
    Fault("early-exit", ("rank-exited-early",)),
    Fault("out-of-memory", ("gpu-oom",), needs_cuda=True),
    Fault("healthy-slow-rank0", (HEALTHY,), (), ""),
    Fault("ddp-uneven-batches", ("uneven-inputs", "code-divergence")),
    Fault("ddp-validation-on-rank0", ("code-divergence",), (0,), "broadcast"),
    Fault("ddp-unused-on-one", ("unused-parameters", "code-divergence")),
    Fault("fsdp-batch-left-out", ("code-divergence",), op="all_gather", is_symmetric=True),
    Fault("swallowed-exception", ("code-divergence", "user-exception"), is_symmetric=True),
    Fault("loader-stuck", ("dataloader-hang",)),
    Fault("queue-empty", ("rank-stuck-in-user-code",)),
    Fault("send-left-out", ("code-divergence", "collective-order-race"), op="recv"),
    Fault("healthy-ddp", (HEALTHY,), (), ""),
    Fault("healthy-fsdp", (HEALTHY,), (), ""),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
