"""The cases of path-mtu."""

from __future__ import annotations

from typing import Any

from unhang.model import Reading
from unhang.rules.machine.pairs import PAIR
from unhang.testing import Fires, Quiet, read, readings_case


def _pair(rank: int, peer: int, **fields: Any) -> Reading:
    host = f"node{peer // 2}"
    return read(
        f"{PAIR} node{rank // 2} -> {host}",
        rank=rank,
        peer_rank=peer,
        peer_host=host,
        tried=8,
        connected=8,
        pings=40,
        mss_bytes=1448,
        **fields,
    )


CASES = {
    "path-mtu": (
        Fires(
            readings_case(
                _pair(0, 2, stalled=True, passing_mss_bytes=536), _pair(2, 0, stalled=True, passing_mss_bytes=536)
            ),
            (0, 2),
        ),
        Quiet(readings_case(_pair(0, 2), _pair(2, 0)), "large transfers arrive"),
    ),
}
