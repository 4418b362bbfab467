"""The area `network`: interfaces, what the backends choose of them, the master's name, ports, and the ways between the hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unhang.check.areas import Context
from unhang.check.network.addresses import own_addresses, read_choices, read_master
from unhang.check.network.interfaces import Interface, interface_reading, network_id, read_interfaces
from unhang.check.network.measuring import Endpoint, Fields, Listening, better, flat, measure
from unhang.check.network.ports import read_ports
from unhang.check.participants import Participants
from unhang.model import Reading, Unavailable
from unhang.rules.machine.pairs import PAIR, Ways

# The ways between the hosts of a job, tested pair by pair: one rank of each host listens, and connects to the others.

_MEET_LIMIT_S, _GRACE_S, _PAUSE_S = 10.0, 5.0, 0.01
_BASE_S, _PER_HOST_S, _LONGEST_S = 8.0, 1.0, 60.0
_PEER_LIMIT_S, _CONFIRM_S = 7.0, 5.0
_MOST_CONFIRMED = 8

Measured = dict[int, list[Fields]]  # rank of the peer -> a table per address
_ALL_PAIRS = 32


def read_pairs(
    participants: Participants, origins: Mapping[str, str], minor: Sequence[str] = ()
) -> Iterator[Reading | Unavailable]:
    """Readings `network.pair` of this rank's host.

    `origins`: own address -> why it would be used, with its interface; `minor`: those of a backend that the job perhaps does
    not use. Every rank calls it; those that do not speak for their host only wait. Blocks up to about 20 s for 4 hosts, most of
    which is for what does not answer; a healthy network takes half a second per round.
    """
    member = participants.member
    keys = participants.exchange("network/hosts", f"{member.host}/{network_id()}", _MEET_LIMIT_S)
    speakers = _first_of_each(keys)
    if len(speakers) < 2:
        yield Unavailable(PAIR, "all ranks are on one host")
        return
    speaks = member.rank in speakers
    with Listening(tuple(origins) if speaks else ()) as listening:
        own: Fields = {"host": member.host, "token": listening.token.hex(), "ports": listening.ports}
        own |= {"origin": dict(origins), "minor": list(minor)}
        shared = participants.exchange("network/endpoints", own, _MEET_LIMIT_S)
        endpoints = {r: Endpoint(rank=r, key=keys[r], **shared[r]) for r in speakers if r in shared}
        tour = _Tour(participants, endpoints, time.monotonic() + _budget_s(len(endpoints)))
        found = tour.rounds() if speaks else {}
        limit_s = _budget_s(len(endpoints)) + _GRACE_S
        everyone = participants.exchange(
            "network/pairs", {str(rank): tables for rank, tables in found.items()}, limit_s
        )
        doubtful = _suspects(everyone, endpoints)
        if doubtful:
            found = tour.again(doubtful, found) if speaks else {}
            participants.exchange("network/pairs-again", True, _CONFIRM_S + _PEER_LIMIT_S + _GRACE_S)
    for tables in found.values():
        yield from (_reading(member.host, member.rank, fields) for fields in tables)
    if speaks and len(found) < tour.planned:
        yield Unavailable(
            PAIR, f"{member.host}: {tour.planned - len(found)} of {tour.planned} ways were not tested in time"
        )


def _budget_s(hosts: int) -> float:
    return min(_LONGEST_S, _BASE_S + _PER_HOST_S * hosts)


def _first_of_each(keys: Mapping[int, str]) -> tuple[int, ...]:
    """One rank of each host, the lowest."""
    first: dict[str, int] = {}
    for rank in sorted(keys):
        first.setdefault(keys[rank], rank)
    return tuple(sorted(first.values()))


def _reading(host: str, rank: int, fields: Fields) -> Reading:
    return Reading(PAIR, f"{host} -> {fields['peer_host']}", flat(fields), rank, host)


def _suspects(everyone: Mapping[int, Any], endpoints: Mapping[int, Endpoint]) -> tuple[tuple[int, int], ...]:
    """Pairs of ranks that look bad and may look better when they are measured alone. The same on all ranks."""
    readings = [
        _reading(endpoints[rank].host, rank, fields)
        for rank in sorted(everyone)
        if rank in endpoints
        for tables in everyone[rank].values()
        for fields in tables
    ]
    all_ways = Ways(readings)
    doubtful = [r for r in readings if not _is_certain(r) and all_ways.is_suspect(r)]
    ends = ((r.rank or 0, int(r.number("peer_rank") or 0)) for r in doubtful)
    pairs = dict.fromkeys((min(pair), max(pair)) for pair in ends)
    return tuple(pairs)[:_MOST_CONFIRMED]


def _is_certain(pair: Reading) -> bool:
    """Nothing came through at all, or small segments pass where large ones do not: no second measurement is needed."""
    return not pair.number("connected") or pair.number("passing_mss_bytes") is not None


@dataclass
class _Tour:
    """The measurements of one rank. `planned`: ways that it was to measure."""

    participants: Participants
    endpoints: Mapping[int, Endpoint]
    deadline: float
    planned: int = 0

    def rounds(self) -> Measured:
        """Measures with one peer after the other. Who is in a round with whom begins and ends it together."""
        ranks = sorted(self.endpoints)
        own = self.participants.member.rank
        if own not in self.endpoints:
            return {}
        peers = peers_of(ranks.index(own), len(ranks))
        self.planned = sum(peer is not None for peer in peers)
        found: Measured = {}
        for turn, peer in enumerate(peers):
            if peer is None:
                continue
            if time.monotonic() > self.deadline:
                break
            rank = ranks[peer]
            self._mark(f"begin/{turn}", own)
            if self._await(f"begin/{turn}", rank):  # who is not there is no fault of the network
                found[rank] = measure(self.endpoints[rank])
            self._mark(f"end/{turn}", own)
            self._await(f"end/{turn}", rank)
        return found

    def again(self, pairs: Sequence[tuple[int, int]], found: Measured) -> Measured:
        """Measures the doubtful pairs once more, one after the other while all others rest."""
        own = self.participants.member.rank
        deadline = time.monotonic() + _CONFIRM_S
        for turn, pair in enumerate(pairs):
            if own not in pair:
                continue
            for rank in pairs[turn - 1] if turn else ():
                self._await(f"again/{turn - 1}", rank)
            peer = pair[0] if pair[1] == own else pair[1]
            if time.monotonic() < deadline and peer in found:
                second = measure(self.endpoints[peer])
                found[peer] = [better(a, b) for a, b in zip(found[peer], second, strict=True)]
            self._mark(f"again/{turn}", own)
        return found

    def _mark(self, what: str, rank: int) -> None:
        self.participants.store.set(f"network/{what}/{rank}", "1")

    def _await(self, what: str, rank: int) -> bool:
        """Waits until a peer has come to the same point; whether it has. Blocks up to a few seconds."""
        deadline = min(self.deadline + _CONFIRM_S, time.monotonic() + _PEER_LIMIT_S)
        while not self.participants.store.check([f"network/{what}/{rank}"]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        return True


def peers_of(index: int, size: int) -> tuple[int | None, ...]:
    """The peer of one of `size` hosts in each round; None: it pauses.

    Up to `_ALL_PAIRS` hosts every pair meets once, as in a round-robin tournament. More of them measure along a ring and at
    strides of 2, 4, 8 ... around it: a host is then in 2 log2(size) ways, and each round uses each host once either way.
    """
    if size < 2:
        return ()
    if size <= _ALL_PAIRS:
        return tuple(_opponent(index, turn, size + size % 2, size) for turn in range(size - 1 + size % 2))
    return tuple((index + (1 << k)) % size for k in range((size - 1).bit_length()))


def _opponent(index: int, turn: int, even: int, size: int) -> int | None:
    """The circle method: the last one stays, the others turn; whoever meets the one too many pauses."""
    last = even - 1
    if index == last:
        peer = turn
    elif index == turn:
        peer = last
    else:
        peer = (2 * turn - index) % last
    return peer if peer < size else None


SCOPE = "host"
LIMIT_S = 10.0
_MOST_INTERFACES = 64


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """Interfaces, what gloo and NCCL would choose, the master's name, and ports."""
    interfaces: tuple[Interface, ...] = ()
    try:
        interfaces = read_interfaces()
        choices = list(read_choices(context, interfaces))
    except OSError as error:
        reason = f"this system does not tell of its interfaces: {error}"
        yield from (Unavailable(kind, reason) for kind in ("network.interface", "network.choice"))
    else:
        yield from map(interface_reading, interfaces[:_MOST_INTERFACES])
        yield from choices
    yield from read_master(context, interfaces)
    yield from read_ports(context)


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """The ways between the hosts."""
    if context.participants.is_alone:
        yield Unavailable("network.pair", "one process; torchrun or srun starts it on all nodes")
        return
    yield from read_pairs(context.participants, *own_addresses(context))
