"""Horovod's stall inspector, Horovod 0.11 to 0.28."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "horovod.stalled",
        r"tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
        ("gathered or broadcasted by subset of ranks",),
        (
            "[2020-12-30 16:35:15.181832: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced, "
            "gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.",
        ),
        says="hang",
    ),
    Pattern(
        "horovod.missing",
        r"(?:^|(?<=\s))(?P<tensor>\S{1,400}) ?\[missing ranks: ?(?P<missing>\d+(?:, ?\d+)*)",
        ("[missing ranks:",),
        ("allreduce.conv1.weight [missing ranks: 0]", "DistributedOptimizer_Allreduce/cond_1 [missing ranks: 1, 5]"),
        says="hang",
    ),
    Pattern(
        "horovod.missing_for",
        r"^\s*(?P<rank_>\d+): \[(?P<tensors>[^\[\]]*(?:[Aa]ll(?:reduce|gather|toall)|[Bb]roadcast)[^\[\]]*)\]?\s*$",
        ("llreduce", "llgather", "lltoall", "roadcast"),
        (
            "5: [allreduce.conv1.weight, allreduce.bn1.weight ...]",
            "0: [DistributedGradientTape_Allreduce/cond_163/then/_1304/HorovodAllreduce_AddN_103_0]",
        ),
        ("allreduce.conv1.weight [ready ranks: 0, 7]", "3: loss [Allreduce] done"),
    ),
    Pattern(
        "horovod.ready",
        r"(?:^|(?<=\s))(?P<tensor>\S{1,400}) ?\[ready ranks: ?(?P<ready>\d+(?:, ?\d+)*)",
        ("[ready ranks:",),
        ("allreduce.conv1.weight [ready ranks: 0, 7, 3, 2, 4, 6], ",),
        says="hang",
    ),
)
