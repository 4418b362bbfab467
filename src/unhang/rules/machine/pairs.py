"""Rules on the ways between hosts and ranks: pairs that stand out and what they have in common, searched links, collectives that ran over them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from unhang.analyze.situation import Situation
from unhang.model import Reading, grouped
from unhang.rules.base import Found, rule
from unhang.rules.machine import cite, ranks_of

PAIR = "network.pair"
FAR_MS = 20.0  # a round trip that no network within one site needs
_FEW_PAIRS, _RATIO, _SPREAD = 4, 4.0, 6.0
_LEAST_EXTRA_MS = 2.0  # between racks or halls of one site it is less
_BUSY, _RATIO_OF_BUSY, _EXTRA_OF_BUSY_MS = 0.3, 20.0, 10.0  # machines that wait for cores measure these first
_LOSS, _LEAST_LOST = 0.01, 3
_HEADERS_BYTES = 52  # IPv4 and TCP with time stamps
_OUTCOMES = {
    "timed_out": "no answer (dropped by a firewall, or a wrong route)",
    "refused": "refused (rejected by a firewall)",
    "no_route": "no route to it",
    "not_ours": "another process or host answers there",
    "failed": "failed",
}


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
        by_host = grouped(
            (host, value) for pair in self.pairs if (value := pair.number(name)) is not None for host in _ends(pair)
        )
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


def _confirmed(bad: Sequence[Reading]) -> list[Reading]:
    """What stood out, where at least one of it did so again when it was measured alone; else nothing.

    On busy machines some pair is always the slowest; a second look clears those that only had bad luck.
    """
    return list(bad) if any(p.number("measured") == 2 for p in bad) else []


def _loss_of(pair: Reading) -> float:
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
    if len({frozenset(_ends(p)) for p in bad}) < 2:
        return ""
    counts = Counter(host for pair in bad for host in set(_ends(pair)))
    (host, count), *rest = counts.most_common(2)
    own = sum(1 for p in ways.pairs if host in _ends(p))
    is_alone = not rest or rest[0][1] < count
    return host if count == len(bad) and is_alone and 2 * count >= own else ""


def _ends(pair: Reading) -> tuple[str, str]:
    """The host that connected, and its peer."""
    return pair.host, pair.text("peer_host")


def _ranks_at(bad: Iterable[Reading], host: str) -> tuple[int, ...]:
    """The ranks of the bad pairs; those on `host` only where it is given."""
    found: set[int] = set()
    for pair in bad:
        peer = pair.number("peer_rank")
        if pair.rank is not None and host in ("", pair.host):
            found.add(pair.rank)
        if peer is not None and host in ("", pair.text("peer_host")):
            found.add(int(peer))
    return tuple(sorted(found))


def _named(bad: Sequence[Reading], host: str) -> str:
    """Pairs for people: `between node3 and the others`, `from node1 to node2`, `between node1 and node2`."""
    if host:
        return f"between {host} and the others"
    ways = sorted({_ends(pair) for pair in bad})
    if len(ways) == 1:
        return f"from {ways[0][0]} to {ways[0][1]}"
    undirected = sorted({tuple(sorted(way)) for way in ways})
    shown = ", ".join(" and ".join(pair) for pair in undirected[:3])
    return f"between {shown}" + (f" and {len(undirected) - 3} more pairs" if len(undirected) > 3 else "")


def _found_on(
    s: Situation, bad: Sequence[Reading], ways: Ways, confidence: float, words: dict[str, Any], **more: Any
) -> Found:
    """What stands out on these pairs. The ranks of the host that is in all of them are the culprits, if there is one."""
    host = host_in_all(bad, ways)
    ranks = _ranks_at(bad, host)
    words = {"ways": _named(bad, host), "host": host or "one of the two hosts", **words}
    return Found(confidence, ranks, cite(bad), words, victims=s.others(ranks), **more)


@rule("lossy-way", reads=(PAIR,))
def lossy_way(s: Situation) -> Found | None:
    """Where nothing large arrives it is `path-mtu`."""
    ways = Ways(s.readings.of(PAIR))
    bad = _confirmed([p for p in ways.pairs if ways.is_lossy(p) and not is_black_hole(p)])
    return _found_on(s, bad, ways, 0.9, {"share": f"{100 * max(map(_loss_of, bad)):.0f}"}) if bad else None


@rule("path-mtu", reads=(PAIR,))
def path_mtu(s: Situation) -> Found | None:
    """With the largest segment that passes, where one does."""
    ways = Ways(s.readings.of(PAIR))
    bad = [p for p in ways.pairs if is_black_hole(p)]
    if not bad:
        return None
    passing = min((int(n) for p in bad if (n := p.number("passing_mss_bytes")) is not None), default=None)
    words = {
        "used": max(int(p.number("mss_bytes") or 0) for p in bad),
        "passing": passing,
        "mtu": 1400 if passing is None else passing + _HEADERS_BYTES,
    }
    if passing is not None:
        return _found_on(s, bad, ways, 0.95, words, say="passing")
    return _found_on(s, bad, ways, 0.85 if all(p.number("measured") == 2 for p in bad) else 0.75, words)


@rule("slow-way", reads=(PAIR,))
def slow_way(s: Situation) -> Iterator[Found]:
    """Slow pairs, narrow pairs, and a job that is spread over far places."""
    ways = Ways(s.readings.of(PAIR))
    sound = [p for p in ways.pairs if p["stalled"] is not True and not ways.is_lossy(p)]
    slow = _confirmed([p for p in sound if ways.is_slow(p)])
    narrow = _confirmed([p for p in sound if ways.is_narrow(p) and p not in slow])
    usual_ms = ways.usual_rtt_ms[0]
    if slow:
        worst = max(p.number("rtt_min_ms") or 0 for p in slow)
        words = {"ms": f"{worst:.1f}", "usual": f"{usual_ms:.1f}", "address": _address(slow)}
        yield _found_on(s, slow, ways, 0.85, words, say="slow")
    if narrow:
        least = min(p.number("bandwidth_mbytes_s") or 0 for p in narrow)
        words = {"speed": f"{least:.1f}", "usual": f"{ways.usual_mbytes_s:.0f}", "address": _address(narrow)}
        yield _found_on(s, narrow, ways, 0.85, words, say="narrow")
    if usual_ms > FAR_MS:
        words = {"ms": f"{usual_ms:.0f}", "address": _address(ways.pairs)}
        yield Found(0.75, (), cite(ways.pairs), words, say="far", victims=s.others(()))


def _address(bad: Sequence[Reading]) -> str:
    return bad[0].text("address") or "<address>"


@rule("ports-blocked", reads=(PAIR,))
def ports_blocked(s: Situation) -> Iterator[Found]:
    """Addresses that nobody reaches, then hosts and pairs for which some ports are closed."""
    ways = Ways(s.readings.of(PAIR))
    bad = [p for p in ways.pairs if is_blocked(p) and not (p.number("connected") and ways.is_lossy(p))]
    dead = _dead_addresses(bad, ways)
    for (host, _), own in dead.items():
        origin, ranks = own[0].text("origin"), _ranks_at(own, host)
        words = {
            "origin": f" ({origin})" if origin else "",
            "variable": "NCCL_SOCKET_IFNAME" if origin.startswith("nccl") else "GLOO_SOCKET_IFNAME",
            "interface": way_to_master(s, {host}) or "<the one that `ip route get OTHER_NODE` names>",
            **_blocked_words(own),
        }
        confidence = 0.75 if own[0]["is_main"] is False else 0.96
        yield Found(confidence, ranks, cite(own), words, say="dead", victims=s.others(ranks))
    rest = [p for p in bad if not any(p in found for found in dead.values())]
    if rest:
        tried, connected = (sum(int(p.number(what) or 0) for p in rest) for what in ("tried", "connected"))
        certain = all(p.number("measured") == 2 or not p.number("connected") for p in rest)
        words = {"closed": tried - connected, "tried": tried, **_blocked_words(rest)}
        yield _found_on(s, rest, ways, 0.95 if certain else 0.8, words, say="some", fixes=("ports",))


def way_to_master(s: Situation, hosts: Collection[str] | None = None) -> str:
    """The interface that leads these hosts (None: all) to the master, where it is the same on all; else empty."""
    masters = [m for m in s.readings.of("network.master") if hosts is None or m.host in hosts]
    ways = {m.text("source_interface") for m in masters} - {"", "lo"}
    return ways.pop() if len(ways) == 1 else ""


def _blocked_words(bad: Sequence[Reading]) -> dict[str, Any]:
    """What became of the attempts, what the ports have in common, and one attempt to repeat."""
    counts = Counter({outcome: sum(int(p.number(outcome) or 0) for p in bad) for outcome in _OUTCOMES})
    return {
        "outcomes": "; ".join(f"{n} x {_OUTCOMES[outcome]}" for outcome, n in counts.most_common() if n),
        "range": _range(bad),
        "port": next(iter(bad[0].text("failed_ports").split()), "<port>"),
        "from": bad[0].host,
        "to": bad[0].text("peer_host"),
        "address": bad[0].text("address"),
    }


def _dead_addresses(bad: Sequence[Reading], ways: Ways) -> dict[tuple[str, str], list[Reading]]:
    """Addresses of a host to which no host could connect, though at least two tried, or though it connected itself."""
    found = grouped(((pair.text("peer_host"), pair.text("address")), pair) for pair in ways.pairs)
    connects = {p.host for p in ways.pairs if p.number("connected")}
    return {
        key: own
        for key, own in found.items()
        if all(w in bad and not w.number("connected") for w in own) and (len(own) > 1 or key[0] in connects)
    }


def _range(bad: Sequence[Reading]) -> str:
    """What the ports that failed have in common, where all of them lie above or below those that are open."""
    failed = sorted(int(port) for p in bad for port in p.text("failed_ports").split())
    opened = sorted(int(port) for p in bad for port in p.text("open_ports").split())
    if len(failed) < 2 or not opened:
        return ""
    between = [port for port in opened if failed[0] < port < failed[-1]]
    return "" if between else f" All that failed lie between {failed[0]} and {failed[-1]}, no open one does."


@rule("bad-link", reads=("links.search",))
def bad_link(s: Situation) -> Iterator[Found]:
    """Links between two hosts."""
    for reading in s.readings.of("links.bad_link"):
        if len(_hosts_between(s, reading)) == 2:
            yield _bad(s, reading)


@rule("bad-rank", reads=("links.search",))
def bad_rank(s: Situation) -> Iterator[Found]:
    """Ranks that are bad, those that got stuck, and bad links within a host."""
    for reading in s.readings.of("links.stuck"):
        yield _bad(s, reading, "stuck")
    for reading in s.readings.of("links.bad_rank", "links.bad_link"):
        if reading.kind == "links.bad_rank" or len(_hosts_between(s, reading)) < 2:
            yield _bad(s, reading)


def _bad(s: Situation, reading: Reading, say: str = "") -> Found:
    """What the search found, with the groups that failed."""
    ranks, hosts = _ranks_named(reading), _hosts_between(s, reading)
    words = {
        "rank": ranks[0],
        "other": ranks[-1],
        "where": f" ({' and '.join(hosts)})" if hosts else "",
        "tests": reading.text("failed_tests"),
        "said": f" It was said: {reading.text('reason')}." if reading.text("reason") else "",
    }
    return Found(
        0.95,
        ranks,
        cite([reading, *s.readings.of("links.search")]),
        words,
        say or ("link" if len(ranks) == 2 else "rank"),
        victims=s.others(ranks),
    )


def _hosts_between(s: Situation, reading: Reading) -> list[str]:
    evidence = [s.case.ranks.get(rank) for rank in _ranks_named(reading)]
    return sorted({e.identity.host for e in evidence if e and e.identity.host})


def _ranks_named(reading: Reading) -> tuple[int, ...]:
    """The ranks that a reading of the search names: `2`, or `1-3`."""
    return tuple(int(rank) for rank in reading.subject.split("-"))


@rule("checked-collective-failed", reads=("collectives.suite",))
def checked_collective_failed(s: Situation) -> Found | None:
    """All failures: the first one, and whom they accuse together."""
    failures = s.readings.of("collectives.failure")
    if not failures:
        return None
    blamed = s.readings.of("collectives.blame")
    ranks, first = ranks_of(blamed), failures[0]
    why = [b.text("because") for b in blamed[:1]] or [first.text("because")]
    words = {
        "who": f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: " if ranks else "",
        "which": first.subject,
        "more": f" (and {len(failures) - 1} more)" if len(failures) > 1 else "",
        "why": why[0] or "The ranks stand alike",
        "unsure": "" if ranks else "The evidence does not tell which rank is at fault. ",
    }
    victims = s.others(ranks) if ranks else ()
    return Found(0.96, ranks, cite((*failures, *blamed)), words, first.text("verdict"), victims=victims)
