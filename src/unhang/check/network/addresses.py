"""The address of rank 0, and those that gloo and NCCL will choose for themselves."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unhang.check.areas import Context
from unhang.check.network.interfaces import (
    Interface,
    family_of,
    holder_of,
    is_loopback,
    is_of_use,
    network_id,
    read_interfaces,
)
from unhang.model import Reading, Unavailable
from unhang.model.evidence import Value

_ANY_PORT = 9  # a UDP socket that is connected sends nothing
_RESOLVE_LIMIT_S, _CONNECT_LIMIT_S = 3.0, 2.0


def read_master(context: Context, interfaces: tuple[Interface, ...]) -> Iterator[Reading | Unavailable]:
    """What the master's address resolves to, and which interface leads there."""
    member = context.member
    address = member.address or context.environ.get("MASTER_ADDR", "")
    if not address:
        yield Unavailable("network.master", "MASTER_ADDR is not set")
        return
    found = resolve(address)
    own = [a for a in found.addresses if is_loopback(a) or holder_of(a, interfaces) is not None]
    fields: dict[str, Value] = {
        "addresses": " ".join(found.addresses),
        "took_s": round(found.took_s, 3),
        "error": found.error,
        "is_loopback": bool(found.addresses) and all(map(is_loopback, found.addresses)),
        "is_own": bool(own),
        "families": " ".join(sorted({family_of(a) for a in found.addresses})),
    }
    if interfaces:
        fields["own_families"] = " ".join(
            sorted({family_of(a) for i in interfaces for a in i.addresses if is_of_use(a)})
        )
    if found.addresses:
        fields |= way_to(found.addresses, interfaces)
    if context.participants.is_alone and member.world_size > 1 and member.rank != 0 and member.port and found.addresses:
        fields["connect"] = connect_outcome(address, member.port, _CONNECT_LIMIT_S)
    yield Reading("network.master", address, fields)


def way_to(addresses: tuple[str, ...], interfaces: tuple[Interface, ...]) -> dict[str, str]:
    """The way to the first address that there is one to."""
    problem = ""
    for address in addresses:
        try:
            source = source_address(address)
        except OSError as error:
            problem = problem or (error.strerror or str(error))
        else:
            holder = holder_of(source, interfaces)
            return {"source_address": source, "source_interface": holder.name if holder else ""}
    return {"route_error": problem}


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name resolves to, in the order in which it would be tried. `error` says why there is nothing."""

    name: str
    addresses: tuple[str, ...] = ()
    took_s: float = 0.0
    error: str = ""


def resolve(
    name: str, limit_s: float = _RESOLVE_LIMIT_S, ask: Callable[..., list[tuple[object, ...]]] | None = None
) -> Resolved:
    """Asks as the job does: files, name servers, both address families. Blocks up to `limit_s`.

    The question goes on in a background thread where no answer came in time: the resolver cannot be interrupted, and ends
    by its own timeout.
    """
    answer: list[Resolved] = []
    started = time.monotonic()

    def run() -> None:
        try:
            rows = (ask or socket.getaddrinfo)(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = str(getattr(error, "strerror", None) or error)[:200]
            answer.append(Resolved(name, (), time.monotonic() - started, reason))
        else:
            found = dict.fromkeys(str(row[4][0]) for row in rows)  # type: ignore[index]
            answer.append(Resolved(name, tuple(found), time.monotonic() - started))

    thread = threading.Thread(target=run, daemon=True, name="unhang-resolve")
    thread.start()
    thread.join(limit_s)
    return answer[0] if answer else Resolved(name, (), limit_s, f"no answer within {limit_s:g} s")


def source_address(target: str) -> str:
    """The own address that packets to `target` (an IP address) carry. Never blocks; nothing is sent.

    Raises:
        OSError: there is no route.
    """
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect((target, _ANY_PORT))
        return str(asked.getsockname()[0])


def can_bind(address: str) -> bool:
    """Whether it is an address of this host on which one can listen now. Never blocks."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.bind(place)
    except OSError:
        return False
    return True


def connect_outcome(address: str, port: int, limit_s: float) -> str:
    """What becomes of a TCP connection, in one word of `outcome_of`. It is closed at once. Blocks up to `limit_s`."""
    try:
        with socket.create_connection((address, port), limit_s):
            return "connected"
    except OSError as error:
        return outcome_of(error)


def outcome_of(error: OSError) -> str:
    """The word for an error of a connection."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "timed out"
    if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
        return "refused"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM):
        return "no route"
    return "failed"


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
            return Choice(
                "nccl", _NCCL, asked, fitting[0].name if fitting else "", problem="no address" if fitting else "absent"
            )
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
