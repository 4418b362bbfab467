"""Devices that were not shared out as was meant, by how they are used: a part of the rule device-mapping."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.analyze.lines.unshared import alone_in_use, computing_on_one, on_one_device
from unhang.analyze.situation import Situation
from unhang.rules import wording as w
from unhang.rules.base import Found
from unhang.rules.failure import in_trouble
from unhang.rules.log_lines import found_in, still_starting, sure_beside

OF_DEVICES = ("devices", "known", "settings")
_COUNTED = re.compile(
    r"assert (?:torch\.cuda\.device_count\(\) > [\w.]*local_?rank\b|[\w.]*local_?rank < torch\.cuda\.device_count\(\))",
    re.IGNORECASE,
)
_MOST_OF_NODE = 64


def by_use(s: Situation) -> Iterator[Found]:
    """Where nothing names a device as wrong: who holds one, which one is in use, and which one each rank calls its own."""
    yield from _held_by_one(s)
    if alone := alone_in_use(s.events):
        words = {"count": alone.asked, "device": alone.device}
        yield found_in(s, alone.events, 0.97, (), words=words, say="idle", fixes=("started", "settings"), is_root=True)
    elif computing := computing_on_one(s.events):
        ranks = tuple(sorted({e.rank for e in computing if e.rank is not None}))
        told = {"who": w.name_ranks(ranks), "device": computing[-1]["device"] or computing[-1]["index"]}
        yield found_in(s, computing, 0.9, ranks[1:], words=told, say="same", fixes=OF_DEVICES, is_root=True)
    elif in_trouble(s) and (shared := still_starting(s, on_one_device(s))):
        told = {"who": "several ranks", "device": f"number {shared[0]['device']} for each of them"}
        yield found_in(s, shared, sure_beside(s, 0.72), (), words=told, say="same", fixes=OF_DEVICES, is_root=True)


def _held_by_one(s: Situation) -> Iterator[Found]:
    """Several processes to which a device was refused while others of the job lived on: one of these holds it, alone."""
    refused = still_starting(s, s.events.of("device.busy"))
    lived_on = any("Terminated" in e.text or "SIGTERM" in e.text for e in s.events.of("ending.", "elastic."))
    if len(refused) > 1 and lived_on:
        yield found_in(
            s,
            refused,
            sure_beside(s, 0.7),
            words={"who": "several ranks", "device": "which takes one only"},
            say="same",
            fixes=OF_DEVICES,
        )


def beyond_the_devices(s: Situation) -> tuple[int, ...]:
    """As many of the last ranks of one node as found no device for their local rank: there are devices for the numbers before."""
    size, failed = s.case.job.world_size or 0, s.events.of("device.too_few")
    is_one = all(e.number("nodes") == 1 for e in s.events.of("launchers.nodes"))
    is_counted = is_one and all(_COUNTED.search(e.text) for e in failed)
    return tuple(range(size - len(failed), size)) if is_counted and 0 < len(failed) < size <= _MOST_OF_NODE else ()
