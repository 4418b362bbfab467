"""The ways between the hosts of a job, tested pair by pair: one rank of each host listens, and connects to the others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unhang.model import Reading, Unavailable
from unhang.preflight.net_listen import Listening
from unhang.preflight.net_measure import Endpoint, Fields, better, flat, measure
from unhang.preflight.net_schedule import peers_of
from unhang.preflight.party import Party
from unhang.rules.network.pair_readings import PAIR, Ways

_MEET_LIMIT_S, _GRACE_S, _PAUSE_S = 10.0, 5.0, 0.01
_BASE_S, _PER_HOST_S, _LONGEST_S = 8.0, 1.0, 60.0
_PEER_LIMIT_S, _CONFIRM_S = 7.0, 5.0
_MOST_CONFIRMED = 8

Measured = dict[int, list[Fields]]  # rank of the peer -> a table per address


def network_id() -> str:
    """What tells one network stack from another: the boot of the machine, and the namespace. Empty: it cannot be told."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    return ""


def read_pairs(party: Party, origins: Mapping[str, str], minor: Sequence[str] = ()) -> Iterator[Reading | Unavailable]:
    """Readings `network.pair` of this rank's host.

    `origins`: own address -> why it would be used, with its interface; `minor`: those of a backend that the job perhaps does
    not use. Every rank calls it; those that do not speak for their host only wait. Blocks up to about 20 s for 4 hosts, most of
    which is for what does not answer; a healthy network takes half a second per round.
    """
    member = party.member
    keys = party.exchange("network/hosts", f"{member.host}/{network_id()}", _MEET_LIMIT_S)
    speakers = _first_of_each(keys)
    if len(speakers) < 2:
        yield Unavailable(PAIR, "all ranks are on one host")
        return
    speaks = member.rank in speakers
    with Listening(tuple(origins) if speaks else ()) as listening:
        own: Fields = {"host": member.host, "token": listening.token.hex(), "ports": listening.ports}
        own |= {"origin": dict(origins), "minor": list(minor)}
        told = party.exchange("network/endpoints", own, _MEET_LIMIT_S)
        endpoints = {r: Endpoint(rank=r, key=keys[r], **told[r]) for r in speakers if r in told}
        tour = _Tour(party, endpoints, time.monotonic() + _budget_s(len(endpoints)))
        found = tour.rounds() if speaks else {}
        limit_s = _budget_s(len(endpoints)) + _GRACE_S
        everyone = party.exchange("network/pairs", _plain(found), limit_s)
        doubtful = _suspects(everyone, endpoints)
        if doubtful:
            found = tour.again(doubtful, found) if speaks else {}
            party.exchange("network/pairs-again", True, _CONFIRM_S + _PEER_LIMIT_S + _GRACE_S)
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


def _plain(found: Measured) -> dict[str, list[Fields]]:
    return {str(rank): tables for rank, tables in found.items()}


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
    pairs = dict.fromkeys(_ordered(r.rank or 0, int(r.number("peer_rank") or 0)) for r in doubtful)
    return tuple(pairs)[:_MOST_CONFIRMED]


def _ordered(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _is_certain(pair: Reading) -> bool:
    """Nothing came through at all, or small segments pass where large ones do not: no second measurement is needed."""
    return not pair.number("connected") or pair.number("passing_mss_bytes") is not None


@dataclass
class _Tour:
    """The measurements of one rank. `planned`: ways that it was to measure."""

    party: Party
    endpoints: Mapping[int, Endpoint]
    deadline: float
    planned: int = 0

    def rounds(self) -> Measured:
        """Measures with one peer after the other. Who is in a round with whom begins and ends it together."""
        ranks = sorted(self.endpoints)
        own = self.party.member.rank
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
        own = self.party.member.rank
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
        self.party.store.set(f"network/{what}/{rank}", "1")

    def _await(self, what: str, rank: int) -> bool:
        """Waits until a peer has come to the same point; whether it has. Blocks up to a few seconds."""
        deadline = min(self.deadline + _CONFIRM_S, time.monotonic() + _PEER_LIMIT_S)
        while not self.party.store.check([f"network/{what}/{rank}"]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        return True
