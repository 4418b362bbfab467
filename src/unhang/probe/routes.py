"""Which way this host takes to an address, and whether somebody answers there. Every call has a limit."""

from __future__ import annotations

import errno
import socket

_ANY_PORT = 9  # a UDP socket that is connected sends nothing


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
    """What becomes of a TCP connection, in one word of OUTCOMES. It is closed at once. Blocks up to `limit_s`."""
    try:
        with socket.create_connection((address, port), limit_s):
            return "connected"
    except OSError as error:
        return outcome_of(error)


OUTCOMES = {
    "connected": "connected",
    "refused": "refused: that host answers, but nobody listens there or it is rejected",
    "timed out": "no answer: dropped on the way, or the host is down",
    "no route": "there is no route to it",
    "not ours": "another process answers there",
    "failed": "failed",
}


def outcome_of(error: OSError) -> str:
    """The word for an error of a connection."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "timed out"
    if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
        return "refused"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM):
        return "no route"
    return "failed"
