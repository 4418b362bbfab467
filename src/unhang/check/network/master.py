"""The address of rank 0: what its name resolves to, which interface leads there, and whether somebody answers."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unhang.check.areas import Context
from unhang.check.network.interfaces import Interface, family_of, holder_of, is_loopback, is_of_use
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
