"""Measures the way to one peer: connections to its ports, round trips, and a large transfer. Every part has a limit."""

from __future__ import annotations

import socket
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unhang.preflight.net_listen import BULK, CONNECT, COUNTS, PING, PING_BYTES, greet, receive
from unhang.probe.routes import outcome_of
from unhang.probe.routes_tcp import read_tcp_state, unacknowledged_bytes

_CONNECTED = "connected"
_CONNECT_LIMIT_S, _PING_LIMIT_S, _PING_USUAL_S, _STALL_S = 2.5, 1.2, 0.4, 1.5
_PINGS, _SEND_S, _SEND_BYTES, _CHUNK_BYTES = 40, 0.3, 32 << 20, 1 << 18
_SMALL_SEGMENTS = (1360, 536)  # tried, larger first, where segments of the usual size do not pass
_PROBE_BYTES = 1 << 16

Fields = dict[str, Any]


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
    """Round trips, then the transfer; what fails is told in `error`. `cpu_pressure`: see `_waited_for_cpu_s`."""
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
        passing = next(
            (size for size in _SMALL_SEGMENTS if size < state.mss_bytes and _passes(address, port, token, size)), None
        )
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
    merged = dict(next((t for t in full if _transfers(t)), full[0]))
    merged["outcomes"] = first["outcomes"] | {p: o for p, o in second["outcomes"].items() if o == _CONNECTED}
    for name, pick in (("rtt_ms", min), ("rtt_min_ms", min), ("bandwidth_mbytes_s", max), ("cpu_pressure", max)):
        values = [t[name] for t in full if t.get(name) is not None]
        if values:
            merged[name] = pick(values)
    for part in ("", "bulk_"):
        least = min(full, key=lambda t: t.get(f"{part}lost", 0) / max(1, t.get(f"{part}segments", 0)))
        merged |= {name: least[name] for name in (f"{part}lost", f"{part}segments") if name in least}
    return merged | {"measured": 2}


def _transfers(fields: Fields) -> bool:
    return bool(fields.get("came_bytes")) and not fields.get("stalled")
