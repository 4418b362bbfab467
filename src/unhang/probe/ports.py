"""Whether a TCP port is free on this host, and which sockets listen on it. Never blocks."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTEN, _WORD_BYTES = "0A", 4
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. `inode` leads to the processes that hold it."""

    address: str
    port: int
    inode: int
    uid: int


def listeners_on(port: int) -> tuple[Listener, ...]:
    """The sockets that listen on a port, in this network namespace.

    Raises:
        OSError: the kernel does not show its tables.
    """
    texts = [path.read_text() for path in _TABLES if path.exists()]
    if not texts:
        raise OSError("the kernel shows no /proc/net/tcp")
    return tuple(listener for text in texts for listener in listeners_in(text) if listener.port == port)


def listeners_in(text: str) -> tuple[Listener, ...]:
    """Those of a table in the form of /proc/net/tcp or tcp6."""
    found = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) < 10 or parts[3] != _LISTEN:
            continue
        address, _, port = parts[1].partition(":")
        with suppress(ValueError):
            found.append(Listener(_address(address), int(port, 16), int(parts[9]), int(parts[7])))
    return tuple(found)


def _address(digits: str) -> str:
    """The kernel writes words of 32 bits in the machine's byte order."""
    raw = bytes.fromhex(digits)
    words = [raw[i : i + _WORD_BYTES] for i in range(0, len(raw), _WORD_BYTES)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return str(ipaddress.ip_address(packed))


def why_not_free(port: int) -> str:
    """Tries to bind the port on all addresses, as a store does, and lets it go at once. Empty: it is free."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return error.strerror or str(error)
    return ""
