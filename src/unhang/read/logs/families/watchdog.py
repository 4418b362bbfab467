"""The watchdog of torch's ProcessGroupNCCL, torch 1.13 to 2.13."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "watchdog.timeout",
        r"\[Rank (?P<group_rank>\d+)\][: ]*Watchdog caught collective operation timeout: ?"
        r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)",
        ("Watchdog caught collective operation timeout",),
        (
            "[rank1]:[E228 02:40:22.57 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=532339, OpType=BROADCAST, NumelIn=5164000, NumelOut=5164000, Timeout(ms)=1800000) ran for 1800042 "
            "milliseconds before timing out.",
        ),
        says="hang",
    ),
)
