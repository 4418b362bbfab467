"""What a host offers to the others while they test the way to it: sockets on several ports, for those who know the token."""

from __future__ import annotations

import hmac
import random
import secrets
import selectors
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from unhang.probe.routes_tcp import read_tcp_state

TOKEN_BYTES, PING_BYTES = 32, 64
CONNECT, PING, BULK = b"C", b"P", b"B"
COUNTS = struct.Struct("<QQQ")  # bytes that came, segments sent, segments lost
_OK = b"K"
_FIRST_PORT, _LAST_PORT = 32768, 60999  # where the kernel does not tell its range
_PORTS, _TRIES = 8, 5
_SERVE_LIMIT_S, _MOST_AT_ONCE, _CHUNK_BYTES = 6.0, 64, 1 << 18


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
