"""Horovod's stall inspector."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "horovod.missing",
        r"(?P<tensor>\S+) ?\[missing ranks: ?(?P<missing>\d+(?:, ?\d+)*)",
        ("[missing ranks:",),
        ("allreduce.conv1.weight [missing ranks: 0]", "DistributedOptimizer_Allreduce/cond_1 [missing ranks: 1, 5]"),
        says="hang",
    ),
    Pattern(
        "horovod.missing_for",
        r"^\s*(?P<rank_>\d+): \[(?P<tensors>[\w.<>/]+[^\]]*)\.*\]?$",
        ("Allreduce", "allreduce.", "broadcast."),
        ("5: [allreduce.conv1.weight, allreduce.bn1.weight ...]",),
        ("allreduce.conv1.weight [ready ranks: 0, 7]",),
    ),
    Pattern(
        "horovod.ready",
        r"(?P<tensor>\S+) ?\[ready ranks: ?(?P<ready>\d+(?:, ?\d+)*)",
        ("[ready ranks:",),
        ("allreduce.conv1.weight [ready ranks: 0, 7, 3, 2, 4, 6], ",),
        says="hang",
    ),
)
