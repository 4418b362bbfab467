"""The area `network`: interfaces, what the backends choose of them, the master's name, ports, and the ways between the hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unhang.check.areas import Context, Participants
from unhang.check.network.addresses import (
    Interface,
    Resolved,
    can_bind,
    family_of,
    holder_of,
    interface_reading,
    is_loopback,
    is_of_use,
    network_id,
    read_interfaces,
    read_master,
    resolve,
    way_to,
)
from unhang.check.network.measuring import Endpoint, Fields, Listening, better, flat, measure
from unhang.check.network.ports import read_ports
from unhang.model import Reading, Unavailable
from unhang.rules.machine.pairs import PAIR, Ways

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


# What gloo and NCCL will choose.

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_NCCL_ORDER = (
    ("ib", "ib*"),
    ("^docker,lo", "the first that is neither docker* nor lo*"),
    ("docker", "docker*"),
    ("lo", "lo*"),
)
_FAMILIES = {"AF_INET": "IPv4", "AF_INET6": "IPv6"}
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


def read_choices(context: Context, interfaces: Sequence[Interface]) -> Iterator[Reading]:
    """What each backend of the job will choose."""
    for choice in _choices(context, interfaces):
        fields = asdict(choice) | {"family": choice.family, "is_loopback": is_loopback(choice.address)}
        fields["is_main"] = mains(context.environ, context.options.backend)[0] == choice.backend
        fields["network_id"] = network_id()
        yield Reading("network.choice", str(fields.pop("backend")), fields)


def _choices(context: Context, interfaces: Sequence[Interface]) -> list[Choice]:
    name = context.member.host
    asked = context.environ.get("GLOO_SOCKET_IFNAME", "")
    host = Resolved(name) if asked.strip() else resolve(name)
    choices = [gloo_choice(context.environ, interfaces, host)]
    if "nccl" in mains(context.environ, context.options.backend):
        choices.append(nccl_choice(context.environ, interfaces))
    return choices


@dataclass(frozen=True, slots=True)
class Choice:
    """What a backend chooses. `how`: the variable, `host name`, `fallback` or `order`; `asked`: its value.

    `problem`: empty, `absent`, `down` or `no address`.
    """

    backend: str
    how: str
    asked: str
    interface: str = ""
    kind: str = ""
    address: str = ""
    problem: str = ""

    @property
    def family(self) -> str:
        """Of the address."""
        return family_of(self.address) if self.address else ""


def gloo_choice(
    environ: Mapping[str, str],
    interfaces: Sequence[Interface],
    host: Resolved,
    is_usable: Callable[[str], bool] = can_bind,
) -> Choice:
    """Gloo takes the interface of the variable, or the first address of the host's own name that it can bind.

    Without any it falls back to 127.0.0.1. `host`: what the host's name resolves to.
    """
    if asked := environ.get(_GLOO, "").strip():
        choices = [_by_name(name.strip(), asked, interfaces) for name in asked.split(",") if name.strip()]
        return next((c for c in choices if c.problem), choices[0] if choices else Choice("gloo", _GLOO, asked))
    for address in host.addresses:
        if is_usable(address):
            holder = holder_of(address, interfaces)
            name, kind = (holder.name, holder.kind) if holder else ("", "")
            return Choice("gloo", "host name", host.name, name, kind, address)
    return Choice("gloo", "fallback", host.name, "lo", "loopback", "127.0.0.1")


def _by_name(name: str, asked: str, interfaces: Sequence[Interface]) -> Choice:
    found = next((i for i in interfaces if i.name == name), None)
    if found is None:
        return Choice("gloo", _GLOO, asked, name, problem="absent")
    return _choice("gloo", _GLOO, asked, found, found.addresses)


def _choice(backend: str, how: str, asked: str, found: Interface, addresses: Sequence[str]) -> Choice:
    problem = "no address" if not addresses else "" if found.is_up and found.has_carrier else "down"
    return Choice(backend, how, asked, found.name, found.kind, next(iter(addresses), ""), problem)


def nccl_choice(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Choice:
    """NCCL takes what the variable names (prefixes; `=` exact, `^` all but these), else the first that fits its order.

    Source: NCCL user guide, NCCL_SOCKET_IFNAME: ib*, then anything but docker* and lo*, then docker*, then lo*.
    """
    family = _FAMILIES.get(environ.get("NCCL_SOCKET_FAMILY", ""), "")
    asked = environ.get(_NCCL, "").strip()
    for pattern, how in ((asked, _NCCL),) if asked else _NCCL_ORDER:
        fitting = [i for i in interfaces if fits(pattern, i.name)]
        addressed = sorted((i for i in fitting if _of(family, i)), key=lambda i: family_of(_of(family, i)[0]))
        usable = [i for i in addressed if i.is_up]
        if usable or (asked and addressed):
            first = (usable or addressed)[0]
            return _choice("nccl", how if asked else "order", asked or how, first, _of(family, first))
        if asked:
            name, problem = (fitting[0].name, "no address") if fitting else ("", "absent")
            return Choice("nccl", _NCCL, asked, name, problem=problem)
    return Choice("nccl", "order", "", problem="no address")


def _of(family: str, interface: Interface) -> tuple[str, ...]:
    return tuple(a for a in interface.addresses if not family or family_of(a) == family)


def fits(pattern: str, name: str) -> bool:
    """Whether a name is meant by a pattern of NCCL: `eth`, `=eth0`, `^docker,lo`, `^=eth1`, several with commas."""
    excludes = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    is_exact = rest.startswith("=")
    names = [n.split(":")[0] for n in rest.removeprefix("=").split(",") if n]
    return any(name == n if is_exact else name.startswith(n) for n in names) != excludes


def has_devices() -> bool:
    """Whether there is a GPU that NCCL or RCCL could use."""
    return any(Path(path).exists() for path in _DEVICES)


def mains(environ: Mapping[str, str], backend: str) -> tuple[str, ...]:
    """The backends that the job uses, as far as is known; the first mainly. `backend`: what was asked for."""
    if backend:
        return (backend, *("gloo",) * (backend != "gloo"))
    if has_devices():
        return ("nccl", "gloo")
    return ("gloo", *("nccl",) * bool(environ.get(_NCCL)))


def own_addresses(context: Context) -> tuple[dict[str, str], list[str]]:
    """Own addresses that the job would give its peers -> why, and those that it perhaps does not use.

    Where none is of use to others, the one that leads to the master.
    """
    try:
        interfaces = read_interfaces()
    except OSError:
        interfaces = ()
    main = mains(context.environ, context.options.backend)[0]
    chosen = [c for c in _choices(context, interfaces) if c.address and is_of_use(c.address)]
    chosen.sort(key=lambda c: c.backend != main)
    found: dict[str, str] = {}
    for choice in chosen:
        found.setdefault(choice.address, f"{choice.backend} by {choice.how}, {choice.interface}")
    minor = [address for address in found if all(c.backend != main for c in chosen if c.address == address)]
    return found or _leading_to_master(context, interfaces), minor


def _leading_to_master(context: Context, interfaces: tuple[Interface, ...]) -> dict[str, str]:
    way = way_to(resolve(context.member.address).addresses, interfaces)
    source = way.get("source_address", "")
    if source and is_of_use(source):
        return {source: f"the way to MASTER_ADDR, {way['source_interface']}"}
    usable = (i for i in interfaces if i.is_up and i.has_carrier and i.kind != "container-bridge")
    return next(({a: f"the first address, {i.name}"} for i in usable for a in i.addresses if is_of_use(a)), {})


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
        measured = {str(rank): tables for rank, tables in found.items()}
        everyone = participants.exchange("network/pairs", measured, limit_s)
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
