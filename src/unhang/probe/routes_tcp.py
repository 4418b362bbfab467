"""What the kernel counts for one TCP connection: segments sent and lost, and how large they are. Never blocks."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass

_MOST_BYTES = 256
# Offsets in struct tcp_info of linux/tcp.h; it only ever grows at its end.
_SND_MSS, _PMTU, _TOTAL_RETRANS, _DATA_SEGS_OUT, _DSACK_DUPS = 16, 60, 100, 156, 216


@dataclass(frozen=True, slots=True)
class TcpState:
    """`lost`: segments sent again, without those of which the peer said that they had come after all."""

    segments: int = 0
    lost: int = 0
    mss_bytes: int = 0
    path_mtu_bytes: int = 0


def read_tcp_state(connection: socket.socket) -> TcpState:
    """The counters so far; zeros where the system does not give them."""
    raw = b""
    with suppress(OSError, AttributeError):
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MOST_BYTES)
    again = _word(raw, _TOTAL_RETRANS)
    return TcpState(
        _word(raw, _DATA_SEGS_OUT), max(0, again - _word(raw, _DSACK_DUPS)), _word(raw, _SND_MSS), _word(raw, _PMTU)
    )


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Bytes that were given to the kernel and that the peer's kernel has not confirmed."""
    with suppress(OSError):
        return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0])
    return 0


def _word(raw: bytes, offset: int) -> int:
    return int(struct.unpack_from("=I", raw, offset)[0]) if len(raw) >= offset + 4 else 0
