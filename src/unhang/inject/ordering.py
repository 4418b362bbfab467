"""Faults of order: two threads in one group, and sends and receives that wait for each other."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from . import points, rank
from .armed import Armed
from .collectives import is_wanted, named, numbers, strike_calls
from .fault import CALL, OP, RANK, STEP, Fault, rank_of, seconds
from .points import TRANSFERS, Call


def _dist() -> Any:
    return sys.modules["torch.distributed"]


def _race(armed: Armed) -> None:
    """A second thread of every rank gathers something, in the same group; only on the struck rank it comes first."""

    def listen(call: Call) -> None:
        if not is_wanted(armed, call) or not armed.is_turn:
            return
        is_first = armed.is_here
        if is_first:
            armed.strikes(f"lets a second thread gather before {named(armed, call)}, and not after it as the others")
        place, has_begun = rank.program_line(), threading.Event()

        def gather() -> None:
            dist = _dist()
            parts = [numbers() for _ in range(dist.get_world_size(call.get("group")))]
            time.sleep(0 if is_first else armed.value("seconds"))
            has_begun.set()
            points.in_the_dark(
                lambda: rank.at_line(place, lambda: dist.all_gather(parts, numbers(1.0), call.get("group")))
            )

        threading.Thread(target=gather, name="gathers in the background", daemon=True).start()
        if is_first:
            has_begun.wait()
            time.sleep(armed.value("seconds") / 2)

    points.calls.append(listen)


def _cycle(armed: Armed, call: Call) -> None:
    """Every rank receives from its left neighbour, and nobody sends."""
    dist = _dist()
    left = (dist.get_rank() - 1) % dist.get_world_size()
    armed.strikes(f"receives from rank {left} before it sends, before {named(armed, call)}")
    dist.recv(numbers(), src=left)


def _peer(armed: Armed, call: Call) -> None:
    dist = _dist()
    word = "dst" if call.get("dst") is not None else "src"
    before, size, mine = call.get(word), dist.get_world_size(), dist.get_rank()
    after = next((r % size for r in range(before + 1, before + size) if r % size != mine), None)
    if after is not None:
        armed.strikes(f"makes {named(armed, call)} with {word}={after} instead of {before}")
        call.put(**{word: after})


def _make_peer(armed: Armed) -> None:
    def listen(call: Call) -> None:
        has_peer = call.name in TRANSFERS and (call.get("dst") is not None or call.get("src") is not None)
        if has_peer and armed.is_due:
            _peer(armed, call)

    points.calls.append(listen)


_FAMILY = "order"
_CALLS = "explicit collective call"
FAULTS = (
    Fault("two_threads_one_group", _FAMILY, "a second thread's collective comes first",
          (RANK, STEP, CALL, OP, seconds(0.5, "how much later it comes on the others, in seconds")),
          ("collective-order-race",), "collective-order-race", True, _CALLS,
          _race),
    Fault("p2p_cycle", _FAMILY, "every rank receives before anyone sends", (rank_of("all"), STEP, CALL, OP),
          ("collective-order-race",), "collective-order-race", True, _CALLS,
          lambda armed: strike_calls(armed, _cycle)),
    Fault("p2p_wrong_peer", _FAMILY, "sends to, or receives from, another rank", (RANK, CALL), ("wrong-peer",),
          "code-divergence", True, "send or receive between more than two ranks", _make_peer),
)  # fmt: skip
