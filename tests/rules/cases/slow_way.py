"""The cases of slow-way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unhang.model import Reading
from unhang.rules.machine.pairs import PAIR
from unhang.testing import Fires, Quiet, read, readings_case


def _pairs(hosts: int, slow: Sequence[tuple[int, int]] = (), rtt_ms: float = 12.0, **fields: Any) -> list[Reading]:
    return [
        read(
            f"{PAIR} node{a} -> node{b}",
            rank=2 * a,
            peer_rank=2 * b,
            peer_host=f"node{b}",
            tried=8,
            connected=8,
            measured=2,
            **{
                "rtt_min_ms": 0.2,
                "bandwidth_mbytes_s": 900.0,
                **({"rtt_min_ms": rtt_ms, **fields} if (a, b) in slow or (b, a) in slow else {}),
            },
        )
        for a in range(hosts)
        for b in range(hosts)
        if a != b
    ]


CASES = {
    "slow-way": (
        Fires(readings_case(_pairs(4, slow=[(1, 2)]), world=8), (2, 4)),
        Fires(readings_case(_pairs(4, slow=[(0, 3), (1, 3), (2, 3)]), world=8), (6,)),
        Fires(readings_case(_pairs(4, slow=[(0, 3)], rtt_ms=0.2, bandwidth_mbytes_s=90.0), world=8), (0, 6)),
        Quiet(readings_case(_pairs(4, slow=[(1, 2)], rtt_ms=1.1), world=8), "another rack of the same site"),
        Quiet(readings_case(_pairs(4, slow=[(1, 2)], rtt_ms=0.3, bandwidth_mbytes_s=300.0), world=8), "somewhat less"),
        Quiet(readings_case(_pairs(2, slow=[(0, 1)]), world=4), "two hosts: nothing to compare with"),
    ),
}
