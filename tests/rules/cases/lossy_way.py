"""The cases of lossy-way."""

from __future__ import annotations

from unhang.model import Reading
from unhang.rules.machine.pairs import PAIR
from unhang.testing import Fires, Quiet, read, readings_case


def _pair(rank: int, peer: int, lost: int = 0, bulk_lost: int = 0) -> Reading:
    host = f"node{peer // 2}"
    return read(
        f"{PAIR} node{rank // 2} -> {host}",
        rank=rank,
        peer_rank=peer,
        peer_host=host,
        tried=8,
        connected=8,
        pings=40,
        segments=41,
        lost=lost,
        bulk_segments=4000,
        bulk_lost=bulk_lost,
        measured=2,
    )


CASES = {
    "lossy-way": (
        Fires(
            readings_case(_pair(0, 2, lost=6), _pair(2, 0), _pair(0, 4), _pair(2, 4), _pair(4, 0), world=6),
            (0, 2),
        ),
        Quiet(readings_case(_pair(0, 2, lost=1), _pair(2, 0), _pair(0, 4)), "a single one"),
        Quiet(
            readings_case(*(_pair(a, b, bulk_lost=60) for a in (0, 2, 4) for b in (0, 2, 4) if a != b), world=6),
            "all pairs lose alike under load: the transfer itself fills the queues",
        ),
    ),
}
