"""What the ways between pairs of hosts have in common, and which of them stand out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from unhang.analyze.situation import Situation
from unhang.model import Reading

PAIR = "network.pair"
FAR_MS = 20.0  # a round trip that no network within one site needs
_FEW_PAIRS, _RATIO, _SPREAD = 4, 4.0, 6.0
_LEAST_EXTRA_MS = 2.0  # between racks or halls of one site it is less
_BUSY, _RATIO_OF_BUSY, _EXTRA_OF_BUSY_MS = 0.3, 20.0, 10.0  # machines that wait for cores measure these first
_LOSS, _LEAST_LOST = 0.01, 3


def spans_hosts(s: Situation) -> bool:
    """Whether the job runs, or will run, on more than one host."""
    return not is_only_planned(s) or any((r.number("nodes") or 0) > 1 for r in s.readings.of("setup.job"))


def is_only_planned(s: Situation) -> bool:
    """Whether the other hosts are not there: this one may not be one of them."""
    return len({r.host for r in s.readings.of("network.")}) < 2


class Ways:
    """All ways that were tested, each from one host to an address of another, and what is usual among them."""

    def __init__(self, pairs: Sequence[Reading]) -> None:
        self.pairs = tuple(pairs)

    @cached_property
    def usual_rtt_ms(self) -> tuple[float, float]:
        """The usual shortest round trip, and its spread."""
        return self._usual("rtt_min_ms", statistics.median_low)

    @cached_property
    def usual_mbytes_s(self) -> float:
        """The usual bandwidth."""
        return self._usual("bandwidth_mbytes_s", statistics.median_high)[0]

    @cached_property
    def _usual_loss(self) -> float:
        return statistics.median_low([_rate(p, "bulk_") for p in self.pairs] or [0.0])

    def _usual(self, name: str, middle_of: Callable[[Iterable[float]], float]) -> tuple[float, float]:
        """The median over hosts of the median over each host's pairs, and the spread taken alike.

        Taken host by host, one bad host of four does not shift it, although half of the pairs are its own.
        """
        by_host: dict[str, list[float]] = {}
        for pair in self.pairs:
            if (value := pair.number(name)) is not None:
                for host in ends(pair):
                    by_host.setdefault(host, []).append(value)
        if sum(map(len, by_host.values())) < 2 * _FEW_PAIRS:
            return 0.0, 0.0  # too few to call anything usual
        middle = statistics.median(map(middle_of, by_host.values()))
        spread = statistics.median(statistics.median_low([abs(v - middle) for v in own]) for own in by_host.values())
        return middle, spread

    def is_slow(self, pair: Reading) -> bool:
        """Whether the round trip is far above that of the other pairs of this job, even the shortest that was seen."""
        own, (middle, spread) = pair.number("rtt_min_ms"), self.usual_rtt_ms
        if own is None or not middle:
            return False
        extra_ms = _EXTRA_OF_BUSY_MS if _is_busy(pair) else _LEAST_EXTRA_MS
        return own > max(_RATIO * middle, middle + _SPREAD * spread, middle + extra_ms)

    def is_narrow(self, pair: Reading) -> bool:
        """Whether less than a quarter of what the other pairs carry passes."""
        own = pair.number("bandwidth_mbytes_s")
        ratio = _RATIO_OF_BUSY if _is_busy(pair) else _RATIO
        return own is not None and pair["stalled"] is not True and own < self.usual_mbytes_s / ratio

    def is_lossy(self, pair: Reading) -> bool:
        """Whether more than 1 % is lost: of small segments on an idle way, or of a transfer, unlike elsewhere."""
        if _rate(pair, "") > _LOSS and (pair.number("lost") or 0) >= _LEAST_LOST:
            return True
        lost = pair.number("bulk_lost") or 0
        return lost >= 10 * _LEAST_LOST and _rate(pair, "bulk_") > max(_LOSS, 10 * self._usual_loss)

    def is_suspect(self, pair: Reading) -> bool:
        """Whether anything about this pair would be a finding: worth a second measurement before it is said."""
        judges = (self.is_slow, self.is_narrow, self.is_lossy, is_blocked, is_black_hole)
        return any(stands_out(pair) for stands_out in judges)


def ways_of(s: Situation) -> Ways:
    """Those of a case."""
    return Ways(s.readings.of(PAIR))


def confirmed(bad: Sequence[Reading]) -> list[Reading]:
    """What stood out, where at least one of it did so again when it was measured alone; else nothing.

    On busy machines some pair is always the slowest; a second look clears those that only had bad luck.
    """
    return list(bad) if any(p.number("measured") == 2 for p in bad) else []


def loss_of(pair: Reading) -> float:
    """The share of segments that were lost, 0..1."""
    return max(_rate(pair, ""), _rate(pair, "bulk_"))


def _rate(pair: Reading, part: str) -> float:
    return (pair.number(f"{part}lost") or 0) / max(1.0, pair.number(f"{part}segments") or 0)


def _is_busy(pair: Reading) -> bool:
    return (pair.number("cpu_pressure") or 0.0) > _BUSY


def is_blocked(pair: Reading) -> bool:
    """Whether a port of the peer that it listens on cannot be reached."""
    return (pair.number("tried") or 0) > (pair.number("connected") or 0)


def is_black_hole(pair: Reading) -> bool:
    """Whether small packets pass and large ones do not."""
    return pair["stalled"] is True and bool(pair.number("pings"))


def host_in_all(bad: Sequence[Reading], ways: Ways) -> str:
    """The one host that is part of all bad pairs, where these are at least half of its pairs; empty: there is none."""
    if len({frozenset(ends(p)) for p in bad}) < 2:
        return ""
    counts = Counter(host for pair in bad for host in set(ends(pair)))
    (host, count), *rest = counts.most_common(2)
    own = sum(1 for p in ways.pairs if host in ends(p))
    is_alone = not rest or rest[0][1] < count
    return host if count == len(bad) and is_alone and 2 * count >= own else ""


def ends(pair: Reading) -> tuple[str, str]:
    """The host that connected, and its peer."""
    return pair.host, pair.text("peer_host")


def ranks_at(bad: Iterable[Reading], host: str) -> tuple[int, ...]:
    """The ranks of the bad pairs; those on `host` only where it is given."""
    found: set[int] = set()
    for pair in bad:
        peer = pair.number("peer_rank")
        if pair.rank is not None and host in ("", pair.host):
            found.add(pair.rank)
        if peer is not None and host in ("", pair.text("peer_host")):
            found.add(int(peer))
    return tuple(sorted(found))


def named(bad: Sequence[Reading], host: str) -> str:
    """Pairs for people: `between node3 and the others`, `from node1 to node2`, `between node1 and node2`."""
    if host:
        return f"between {host} and the others"
    ways = sorted({ends(pair) for pair in bad})
    if len(ways) == 1:
        return f"from {ways[0][0]} to {ways[0][1]}"
    undirected = sorted({tuple(sorted(way)) for way in ways})
    shown = ", ".join(" and ".join(pair) for pair in undirected[:3])
    return f"between {shown}" + (f" and {len(undirected) - 3} more pairs" if len(undirected) > 3 else "")
