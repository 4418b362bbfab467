"""Measures the way to one peer: connections to its ports, round trips, and a large transfer. Every part has a limit."""

from __future__ import annotations

import fcntl
import hmac
import random
import secrets
import selectors
import socket
import statistics
import struct
import termios
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unhang.check.network.addresses import outcome_of

_CONNECTED = "connected"
_CONNECT_LIMIT_S, _PING_LIMIT_S, _PING_USUAL_S, _STALL_S = 2.5, 1.2, 0.4, 1.5
_PINGS, _SEND_S, _SEND_BYTES, _CHUNK_BYTES = 40, 0.3, 32 << 20, 1 << 18
_SMALL_SEGMENTS = (1360, 536)  # tried, larger first, where segments of the usual size do not pass
_PROBE_BYTES = 1 << 16

Fields = dict[str, Any]
TOKEN_BYTES, PING_BYTES = 32, 64
CONNECT, PING, BULK = b"C", b"P", b"B"
COUNTS = struct.Struct("<QQQ")  # bytes that came, segments sent, segments lost
_OK = b"K"
_FIRST_PORT, _LAST_PORT = 32768, 60999  # where the kernel does not tell its range
_PORTS, _TRIES = 8, 5
_SERVE_LIMIT_S, _MOST_AT_ONCE = 6.0, 64
_MOST_TCP_INFO_BYTES = 256
# Offsets in struct tcp_info of linux/tcp.h; it only ever grows at its end.
_SND_MSS, _PMTU, _TOTAL_RETRANS, _DATA_SEGS_OUT, _DSACK_DUPS = 16, 60, 100, 156, 216


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a host listens. `ports`: address -> ports; `origin`: address -> why it would be used, and its interface.

    `minor`: addresses of a backend that the job perhaps does not use.
    """

    rank: int
    host: str
    key: str
    token: str
    ports: Mapping[str, list[int]]
    origin: Mapping[str, str]
    minor: Sequence[str] = ()


def measure(peer: Endpoint) -> list[Fields]:
    """One table per address of the peer, of which the first that can be reached is measured in full.

    Blocks up to about 6 s, where everything stalls; on a healthy network much less than a second.
    """
    found: list[Fields] = []
    token = bytes.fromhex(peer.token)
    for address, ports in peer.ports.items():
        table: Fields = {"peer_rank": peer.rank, "peer_host": peer.host, "address": address}
        table |= {"origin": peer.origin.get(address, ""), "is_main": address not in peer.minor}
        table |= {"outcomes": _connects(address, ports, token)}
        port = next((p for p, outcome in table["outcomes"].items() if outcome == _CONNECTED), None)
        if port is not None and not any("pings" in t or "error" in t for t in found):
            table |= _measured(address, int(port), token)
        found.append(table)
    return found


def _connects(address: str, ports: list[int], token: bytes) -> dict[str, str]:
    """Tries all ports at the same time, so that those which are dropped cost the limit once. Port -> outcome."""
    if not ports:
        return {}
    with ThreadPoolExecutor(len(ports), "unhang-connect") as pool:
        outcomes = pool.map(lambda port: _connect(address, port, token), ports)
    return dict(zip(map(str, ports), outcomes, strict=True))


def flat(table: Fields) -> Fields:
    """A table as fields of a reading: the outcomes of the ports as numbers and lists."""
    outcomes: dict[str, str] = table["outcomes"]
    opened = [port for port, outcome in outcomes.items() if outcome == _CONNECTED]
    fields = {name: value for name, value in table.items() if name != "outcomes"}
    fields |= {"tried": len(outcomes), "connected": len(opened), "open_ports": " ".join(opened)}
    fields["failed_ports"] = " ".join(port for port in outcomes if port not in opened)
    counts = Counter(outcome.replace(" ", "_") for outcome in outcomes.values() if outcome != _CONNECTED)
    return fields | counts


def _connect(address: str, port: int, token: bytes) -> str:
    try:
        with socket.create_connection((address, port), _CONNECT_LIMIT_S) as connection:
            return _CONNECTED if greet(connection, token, CONNECT) else "not ours"
    except ConnectionResetError:
        return "not ours"  # it was accepted, and then closed without a word
    except OSError as error:
        return outcome_of(error)


def _measured(address: str, port: int, token: bytes) -> Fields:
    """Round trips, then the transfer; `error`: what failed. `cpu_pressure`: see `_waited_for_cpu_s`."""
    fields: Fields = {}
    started, waited_s = time.monotonic(), _waited_for_cpu_s()
    try:
        fields |= _pings(address, port, token)
        fields |= _bulk(address, port, token)
    except OSError as error:
        fields["error"] = outcome_of(error)
    share = (_waited_for_cpu_s() - waited_s) / max(1e-3, time.monotonic() - started)
    return fields | {"cpu_pressure": round(min(1.0, share), 2)}


def _waited_for_cpu_s() -> float:
    """How long some process of this machine has waited for a core since it started; 0 where the kernel does not tell.

    A machine that is busy anyway measures itself, not the network.
    """
    with suppress(OSError, ValueError, IndexError):
        line = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return int(line.rpartition("total=")[2]) / 1e6
    return 0.0


def _opened(address: str, port: int, token: bytes, word: bytes, segment_bytes: int = 0) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_LIMIT_S)
        if segment_bytes:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
        connection.connect((address, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(connection, token, word)
    except OSError:
        connection.close()
        raise
    return connection


def _pings(address: str, port: int, token: bytes) -> Fields:
    """Small packets to and fro, one at a time."""
    took_ms: list[float] = []
    with _opened(address, port, token, PING) as connection:
        begun = time.monotonic()
        while len(took_ms) < _PINGS and (left := begun + _PING_LIMIT_S - time.monotonic()) > 0:
            if _PING_LIMIT_S - left > _PING_USUAL_S and not read_tcp_state(connection).lost:
                break  # a long way, on which nothing is lost
            connection.settimeout(left)
            started = time.perf_counter()
            try:
                connection.sendall(bytes(PING_BYTES))
                receive(connection, PING_BYTES)
            except TimeoutError:
                break
            took_ms.append((time.perf_counter() - started) * 1e3)
        state = read_tcp_state(connection)
    fields: Fields = {"pings": len(took_ms), "segments": state.segments, "lost": state.lost}
    if took_ms:
        fields |= {"rtt_ms": round(statistics.median(took_ms), 3), "rtt_min_ms": round(min(took_ms), 3)}
    return fields


def _bulk(address: str, port: int, token: bytes) -> Fields:
    """A large transfer for a fraction of a second. Where nothing of it passes: whether smaller segments do."""
    with _opened(address, port, token, BULK) as connection:
        started, sent = time.monotonic(), 0
        block = bytes(_CHUNK_BYTES)
        connection.settimeout(_STALL_S)
        try:
            while sent < _SEND_BYTES and time.monotonic() - started < _SEND_S:
                sent += connection.send(block)
            connection.shutdown(socket.SHUT_WR)
            came, _, _ = COUNTS.unpack(receive(connection, COUNTS.size))
        except TimeoutError:
            came = max(0, sent - unacknowledged_bytes(connection))
        elapsed = max(1e-6, time.monotonic() - started)
        state = read_tcp_state(connection)
    fields: Fields = {
        "sent_bytes": sent,
        "came_bytes": came,
        "bandwidth_mbytes_s": round(came / elapsed / 1e6, 3),
        "mss_bytes": state.mss_bytes,
        "bulk_segments": state.segments,
        "bulk_lost": state.lost,
    }
    if came < min(sent, 2 * max(536, state.mss_bytes)):
        smaller = (size for size in _SMALL_SEGMENTS if size < state.mss_bytes)
        passing = next((size for size in smaller if _passes(address, port, token, size)), None)
        if not _passes(address, port, token):
            fields |= {"stalled": True, "passing_mss_bytes": passing}
    return fields


def _passes(address: str, port: int, token: bytes, segment_bytes: int = 0) -> bool:
    """Whether a transfer goes through, with segments of at most this size."""
    try:
        with _opened(address, port, token, BULK, segment_bytes) as connection:
            connection.settimeout(_STALL_S / 2)
            connection.sendall(bytes(_PROBE_BYTES))
            connection.shutdown(socket.SHUT_WR)
            receive(connection, COUNTS.size)
            return True
    except OSError:
        return False


def better(first: Fields, second: Fields) -> Fields:
    """Two measurements of the same way as one: of each the better, so that only what is always so remains.

    A port failed only where it failed both times; the smaller round trip, the larger bandwidth, the smaller loss.
    """
    full = [t for t in (first, second) if "pings" in t] or [first]
    merged = dict(next((t for t in full if t.get("came_bytes") and not t.get("stalled")), full[0]))
    merged["outcomes"] = first["outcomes"] | {p: o for p, o in second["outcomes"].items() if o == _CONNECTED}
    for name, pick in (("rtt_ms", min), ("rtt_min_ms", min), ("bandwidth_mbytes_s", max), ("cpu_pressure", max)):
        values = [t[name] for t in full if t.get(name) is not None]
        if values:
            merged[name] = pick(values)
    for part in ("", "bulk_"):
        least = min(full, key=lambda t: t.get(f"{part}lost", 0) / max(1, t.get(f"{part}segments", 0)))
        merged |= {name: least[name] for name in (f"{part}lost", f"{part}segments") if name in least}
    return merged | {"measured": 2}


def port_range() -> tuple[int, int]:
    """The ports that the kernel gives to sockets that ask for any: those of gloo and NCCL."""
    with suppress(OSError, ValueError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    return _FIRST_PORT, _LAST_PORT


@dataclass
class Listening:
    """Listens on ports spread over the range of the kernel, on given addresses only. Use it as a context.

    A peer gets not one byte before it has sent the token. All connections have a limit; nothing is left when it is closed.
    """

    addresses: tuple[str, ...]
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES))
    ports: dict[str, list[int]] = field(default_factory=dict)
    _sockets: list[socket.socket] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_MOST_AT_ONCE))
    _thread: threading.Thread | None = None

    def __enter__(self) -> Listening:
        for address in self.addresses:
            self.ports[address] = []
            for part in range(_PORTS):
                if (opened := _listener(address, part)) is not None:
                    self._sockets.append(opened)
                    self.ports[address].append(int(opened.getsockname()[1]))
        self._thread = threading.Thread(target=self._accept, daemon=True, name="unhang-listen")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2)
        for opened in self._sockets:
            opened.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            for opened in self._sockets:
                selector.register(opened, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(0.1):
                    with suppress(OSError):
                        connection, _ = key.fileobj.accept()  # type: ignore[union-attr]
                        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """One connection: the token, a word, and what the word asks for. Whatever fails ends it, and nothing else."""
        with connection, suppress(OSError):
            connection.settimeout(_SERVE_LIMIT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._room.acquire(blocking=False):
                return
            try:
                hello = receive(connection, TOKEN_BYTES + 1)
                if hmac.compare_digest(hello[:TOKEN_BYTES], self.token):
                    connection.sendall(_OK)
                    _answer(connection, hello[TOKEN_BYTES:])
            finally:
                self._room.release()


def _answer(connection: socket.socket, word: bytes) -> None:
    if word == PING:
        while block := connection.recv(PING_BYTES, socket.MSG_WAITALL):
            if len(block) < PING_BYTES:
                break
            connection.sendall(block)
    elif word == BULK:
        count = 0
        while block := connection.recv(_CHUNK_BYTES):
            count += len(block)
        state = read_tcp_state(connection)
        connection.sendall(COUNTS.pack(count, state.segments, state.lost))


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes.

    Raises:
        ConnectionError: the peer ended before.
    """
    data = bytearray()
    while len(data) < size:
        block = connection.recv(size - len(data))
        if not block:
            raise ConnectionResetError("the peer closed the connection")
        data += block
    return bytes(data)


def greet(connection: socket.socket, token: bytes, word: bytes) -> bool:
    """The client's side of the beginning: whether the peer is the one that knows the token."""
    connection.sendall(token + word)
    return receive(connection, len(_OK)) == _OK


def _listener(address: str, part: int) -> socket.socket | None:
    """A socket on a random port of one part of the range; None where none could be had."""
    first, last = port_range()
    width = max(1, (last - first) // _PORTS)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for _ in range(_TRIES):
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.bind((address, first + part * width + random.randrange(width)))
            opened.listen(64)
            opened.setblocking(False)
        except OSError:
            opened.close()
        else:
            return opened
    return None


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
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MOST_TCP_INFO_BYTES)
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
