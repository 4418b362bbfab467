"""The network interfaces of this machine: names, addresses, state, and what kind they are. Never blocks."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from unhang.model import Reading

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
