"""The cases of ports-blocked."""

from __future__ import annotations

from typing import Any

from unhang.model import Reading
from unhang.rules.machine.pairs import PAIR
from unhang.testing import Fires, Quiet, read, readings_case


def _pair(rank: int, peer: int, connected: int = 8, **fields: Any) -> Reading:
    host = f"node{peer // 2}"
    return read(
        f"{PAIR} node{rank // 2} -> {host}",
        rank=rank,
        peer_rank=peer,
        peer_host=host,
        address=f"10.0.0.{peer}",
        tried=8,
        connected=connected,
        **fields,
    )


CASES = {
    "ports-blocked": (
        Fires(
            readings_case(
                _pair(0, 2, connected=5, timed_out=3, failed_ports="52100 55000 59000", measured=2),
                _pair(2, 0),
                _pair(0, 4),
                _pair(4, 0),
                world=6,
            ),
            (0, 2),
        ),
        Fires(
            readings_case(
                _pair(0, 2, connected=0, no_route=8, origin="gloo by GLOO_SOCKET_IFNAME, dummy0"),
                _pair(4, 2, connected=0, timed_out=8, origin="gloo by GLOO_SOCKET_IFNAME, dummy0"),
                _pair(0, 4),
                _pair(4, 0),
                world=6,
            ),
            (2,),
        ),
        Quiet(readings_case(_pair(0, 2), _pair(2, 0)), "all are open"),
        Quiet(
            readings_case(_pair(0, 2, connected=7, timed_out=1, segments=50, lost=9, pings=20)),
            "packets are lost at random: another finding",
        ),
    ),
}
