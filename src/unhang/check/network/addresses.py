"""The network interfaces of this machine, never blocking; and names, addresses and routes: that of rank 0 above all."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from unhang.check.areas import Context
from unhang.model import Reading, Unavailable
from unhang.model.evidence import Value

_SIOCGIFFLAGS, _SIOCGIFMTU, _SIOCGIFCONF = 0x8913, 0x8921, 0x8912
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_IFREQ_BYTES, _MOST_BYTES = 40, 40 * 512
_CONTAINER_BRIDGE = re.compile(r"docker|br-[0-9a-f]{12}$|virbr|lxc|lxd|cni|podman|flannel|cbr|cilium")
_INFINIBAND = 32
_LINK_SCOPE = "20"


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface. `kind`: loopback, infiniband, container-bridge, bridge, virtual or device."""

    name: str
    kind: str = "device"
    is_up: bool = True
    has_carrier: bool = True
    mtu_bytes: int = 1500
    speed_mbps: int | None = None
    addresses: tuple[str, ...] = ()  # IPv4 first, as getifaddrs gives them


def interface_reading(interface: Interface) -> Reading:
    """An interface as it is reported."""
    fields = asdict(interface) | {"addresses": " ".join(interface.addresses)}
    return Reading("network.interface", str(fields.pop("name")), fields)


def read_interfaces() -> tuple[Interface, ...]:
    """All interfaces, in the order of the kernel.

    Raises:
        OSError: this is no Linux, or it does not tell.
    """
    names = [name for _, name in socket.if_nameindex()]
    addresses = _addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return tuple(_interface(asked, name, tuple(addresses.get(name, ()))) for name in names)


def _interface(asked: socket.socket, name: str, addresses: tuple[str, ...]) -> Interface:
    flags = _number(asked, _SIOCGIFFLAGS, name, "H")
    return Interface(
        name,
        kind_of(name, bool(flags & _IFF_LOOPBACK), Path("/sys/class/net")),
        bool(flags & _IFF_UP),
        bool(flags & _IFF_RUNNING),
        _number(asked, _SIOCGIFMTU, name, "i"),
        _speed(name),
        addresses,
    )


def _number(asked: socket.socket, request: int, name: str, form: str) -> int:
    """A flag word or number of an interface; 0 where it has gone meanwhile."""
    with suppress(OSError):
        answer = fcntl.ioctl(asked, request, struct.pack("16s24x", name.encode()))
        return int(struct.unpack_from(form, answer, 16)[0])
    return 0


def kind_of(name: str, is_loopback: bool, folder: Path) -> str:
    """What kind of interface it is. `folder`: /sys/class/net."""
    if is_loopback:
        return "loopback"
    with suppress(OSError, ValueError):
        if int((folder / name / "type").read_text()) == _INFINIBAND:
            return "infiniband"
    if _CONTAINER_BRIDGE.match(name):
        return "container-bridge"
    with suppress(OSError):
        if (folder / name / "bridge").is_dir():
            return "bridge"
        if "/devices/virtual/" in str((folder / name).resolve()):
            return "virtual"
    return "device"


def _speed(name: str) -> int | None:
    """In Mbit/s; None where the device does not tell (virtual ones say -1)."""
    with suppress(OSError, ValueError):
        speed = int(Path(f"/sys/class/net/{name}/speed").read_text())
        return speed if speed > 0 else None
    return None


def _addresses() -> dict[str, list[str]]:
    """Interface -> its addresses, IPv4 before IPv6."""
    found: dict[str, list[str]] = {}
    text = ""
    with suppress(OSError):
        text = Path("/proc/net/if_inet6").read_text()
    for name, address in [*_ipv4(), *ipv6_in(text)]:
        found.setdefault(name, []).append(address)
    return found


def _ipv4() -> list[tuple[str, str]]:
    import array

    room = array.array("B", bytes(_MOST_BYTES))
    start, _ = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _SIOCGIFCONF, struct.pack("iL", _MOST_BYTES, start))
    used = struct.unpack("iL", answer)[0]
    rows = [room[i : i + _IFREQ_BYTES].tobytes() for i in range(0, used, _IFREQ_BYTES)]
    return [(row[:16].split(b"\0")[0].decode().split(":")[0], socket.inet_ntoa(row[20:24])) for row in rows]


def ipv6_in(text: str) -> list[tuple[str, str]]:
    """The addresses in /proc/net/if_inet6. Those of one link only (fe80::) come last: nobody elsewhere reaches them."""
    rows = [parts for parts in map(str.split, text.splitlines()) if len(parts) == 6]
    rows.sort(key=lambda parts: parts[3] == _LINK_SCOPE)
    return [(parts[5], str(ipaddress.IPv6Address(int(parts[0], 16)))) for parts in rows]


def is_loopback(address: str) -> bool:
    """Whether only this host reaches it: 127.x, ::1."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    return False


def is_of_use(address: str) -> bool:
    """Whether others may reach it: neither loopback nor valid on one link only (fe80::, 169.254.x)."""
    with suppress(ValueError):
        found = ipaddress.ip_address(address.split("%")[0])
        return not (found.is_loopback or found.is_link_local)
    return True


def family_of(address: str) -> str:
    """`IPv4` or `IPv6`."""
    return "IPv6" if ":" in address else "IPv4"


def holder_of(address: str, interfaces: Iterable[Interface]) -> Interface | None:
    """The interface that has this address. All of 127.x belong to the loopback interface."""
    plain = address.split("%")[0]
    for interface in interfaces:
        if plain in interface.addresses or (interface.kind == "loopback" and is_loopback(plain)):
            return interface
    return None


def network_id() -> str:
    """What tells one network stack from another: the boot of the machine, and the namespace. Empty: it cannot be told."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    return ""


# Names, addresses and routes.

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
        own_families = {family_of(a) for i in interfaces for a in i.addresses if is_of_use(a)}
        fields["own_families"] = " ".join(sorted(own_families))
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
