"""HTTP between the watchers of one job: signed, fresh, bounded; on asyncio streams of the standard library.

A head is verified before its body is read, so a stranger gets no memory of ours. What is signed holds the hub's nonce and a
number that only grows: a message that was overheard is worth nothing a second time, nor at another hub. Answers are signed
over the request that they answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import secrets
import ssl
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unhang.errors import UnhangError
from unhang.watch.joining import Address

VERSION = 1
MOST_HEAD, MOST_BODY, MOST_PLAIN, MOST_ANSWER = 4096, 32 << 20, 256 << 20, 1 << 20
MOST_CONNECTIONS, MOST_OF_STRANGERS = 20_000, 256
MESSAGES_PER_S, MOST_AT_ONCE = 20.0, 60.0
IDLE_S, HEAD_S, BODY_S, ANSWER_S, MOST_WAIT_S, BEAT_S = 120.0, 5.0, 20.0, 5.0, 5.0, 0.05
_STATUS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict", 413: "Too Large"} | {
    426: "Upgrade Required",
    429: "Too Many Requests",
    503: "Unavailable",
}


class Refused(UnhangError):
    """The other side does not want to talk to us, with its reason. `status`: HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Hello(NamedTuple):
    """What a watcher says to anybody. `job`: tells jobs apart, and nothing about them. `is_hub`: takes messages now."""

    version: int
    nonce: str
    job: str
    is_hub: bool


def key_of(token: str, job: str) -> bytes:
    """The key of one job's messages."""
    return hashlib.sha256(f"unhang/{VERSION}\0{job}\0{token}".encode()).digest()


def mark_of(job: str) -> str:
    """What tells one job from another in public."""
    return hashlib.sha256(f"unhang job\0{job}".encode()).hexdigest()[:16]


def pack(plain: bytes) -> bytes:
    """A body as it travels."""
    return zlib.compress(plain, 1)


def unpack(body: bytes) -> bytes:
    """What was packed.

    Raises:
        Refused: it is damaged, cut, or larger than MOST_PLAIN.
    """
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, MOST_PLAIN)
    except zlib.error as error:
        raise Refused(400, f"a damaged body ({error})") from error
    if not inflater.eof:
        raise Refused(413 if inflater.unconsumed_tail else 400, "a body that is cut, or too large")
    return plain


def _seal(key: bytes, nonce: str, node: str, number: int, digest: str, size: int) -> str:
    return hmac.digest(key, f"{nonce}|{node}|{number}|{digest}|{size}".encode(), "sha256").hex()


def _seal_answer(key: bytes, request: str, body: bytes) -> str:
    return hmac.digest(key, request.encode() + b"|" + body, "sha256").hex()


@dataclass
class _Sender:
    """What is known of one node's messages."""

    number: int = -1
    edition: int = 0  # of the orders that it has heard
    left: float = MOST_AT_ONCE
    seen_at: float = field(default_factory=time.monotonic)

    def may_send(self, now: float) -> bool:
        self.left = min(MOST_AT_ONCE, self.left + (now - self.seen_at) * MESSAGES_PER_S) - 1
        self.seen_at = now
        return self.left >= 0


OnMessage = Callable[[str, bytes], None]
Answer = Callable[[str], bytes]
OnClose = Callable[[str], None]


class Server:
    """Takes messages of nodes. `on_message` gets the node and the plain body; `answer` the node, and returns what it is to hear.

    A node that has nothing to do says how long its answer may wait for `news`. `on_close` gets the node that hung up.
    """

    def __init__(
        self,
        key: bytes,
        job: str,
        on_message: OnMessage,
        answer: Answer,
        on_close: OnClose,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.nonce, self.is_hub = secrets.token_hex(16), False
        self._make_answer, self._edition = answer, 0
        self._due: dict[int, list[asyncio.Event]] = {}  # by the beat at which answers are due
        self._waiting: dict[str, asyncio.Event] = {}
        self._limits: dict[
            asyncio.StreamWriter, float
        ] = {}  # when a connection is given up; a timer for each message costs more than the message
        self._key, self._job, self._tls = key, mark_of(job), tls
        self._on_message, self._on_close = on_message, on_close
        self._senders: dict[str, _Sender] = {}
        self._connections = self._strangers = 0
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None

    async def start(self, host: str | None, port: int) -> Address:
        """Listens. `host` None: on all addresses.

        Raises:
            OSError: the address is not ours, or taken.
        """
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=MOST_HEAD, ssl=self._tls, backlog=1024, reuse_address=True
        )
        self._beating = asyncio.ensure_future(self._beat())
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            self._let_go(now)
            for writer in [w for w, at in self._limits.items() if at < now]:
                del self._limits[writer]
                writer.transport.abort()

    def _let_go(self, until: float) -> None:
        for beat in [beat for beat in self._due if beat * BEAT_S <= until]:
            for event in self._due.pop(beat):
                event.set()

    def news(self, nodes: Iterable[str] | None = None) -> None:
        """Lets the answers go that wait, and those at once that come to hear of it: of these nodes, or of all."""
        if nodes is None:
            self._edition += 1
            self._let_go(math.inf)
        for node in nodes or ():
            self._senders.setdefault(node, _Sender()).edition = -1
            if (event := self._waiting.get(node)) is not None:
                event.set()

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
        if self._beating is not None:
            self._beating.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = ""
        self._connections += 1
        self._strangers += 1
        try:
            if self._connections > MOST_CONNECTIONS or self._strangers > MOST_OF_STRANGERS:
                _answer(writer, 503, b"too many connections")
                return
            while True:
                known = bool(node)
                node = await self._one(reader, writer, node)
                self._strangers -= bool(node) and not known
                if writer.transport.get_write_buffer_size():
                    self._limits[writer] = time.monotonic() + BODY_S
                    await writer.drain()
        except Refused as refusal:
            with suppress(OSError):
                _answer(writer, refusal.status, str(refusal).encode())
        except (OSError, EOFError, ValueError, KeyError, asyncio.LimitOverrunError):
            pass  # hung up, too slow, or no HTTP
        except asyncio.CancelledError:
            writer.transport.abort()  # we end
        finally:
            self._limits.pop(writer, None)
            self._connections -= 1
            self._strangers -= not node
            writer.close()
            if node:
                self._on_close(node)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str) -> str:
        """One request; returns the node that this connection belongs to, "" as long as it is a stranger's."""
        self._limits[writer] = time.monotonic() + (IDLE_S if node else HEAD_S)
        line, fields = _parsed(await reader.readuntil(b"\r\n\r\n"))
        method, path = line[0], line[1]
        if (method, path) == ("GET", "/hello"):
            hello = Hello(VERSION, self.nonce, self._job, self.is_hub)
            _answer(writer, 200, json.dumps(hello._asdict()).encode())
            return node
        if method != "POST" or not path.startswith("/v"):
            raise Refused(404, "nothing is here")
        if path != f"/v{VERSION}/push":
            raise Refused(426, f"this node speaks version {VERSION} of the exchange: install one unhang on all nodes")
        size, number, who = int(fields["content-length"]), int(fields["x-unhang-number"]), fields["x-unhang-node"][:32]
        seal, digest = fields["x-unhang-seal"], fields["x-unhang-digest"]
        if not hmac.compare_digest(seal, _seal(self._key, self.nonce, who, number, digest, size)):
            raise Refused(401, "the token differs, or the message was not meant for this watcher")
        if not 0 <= size <= MOST_BODY:
            raise Refused(413, f"a body of {size} bytes")
        if not self.is_hub:
            raise Refused(409, "this watcher is not the hub")
        sender = self._senders.setdefault(who, _Sender())
        if number <= sender.number:
            raise Refused(409, "a message that was seen before")
        if not sender.may_send(time.monotonic()):
            raise Refused(429, f"more than {MESSAGES_PER_S:g} messages a second")
        self._limits[writer] = (now := time.monotonic()) + BODY_S
        body = await reader.readexactly(size)
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), digest):
            raise Refused(400, "a body that is not what was signed")
        sender.number = number
        due = int((now + min(float(fields.get("x-unhang-wait", 0)), MOST_WAIT_S)) / BEAT_S)
        self._on_message(who, unpack(body))
        if due * BEAT_S > now and sender.edition == self._edition:
            self._waiting[who] = event = asyncio.Event()
            self._due.setdefault(due, []).append(event)
            await event.wait()
        sender.edition = self._edition
        answer = self._make_answer(who)
        _answer(writer, 200, answer, _seal_answer(self._key, seal, answer))
        return who


def _parsed(head: bytes) -> tuple[list[str], dict[str, str]]:
    """The words of the first line, and the fields.

    Raises:
        Refused: it is no HTTP.
    """
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split()
    if len(words) < 2 or not any(words[i].startswith("HTTP/1.") for i in (0, -1)):
        raise Refused(400, "no HTTP")
    fields = {"content-length": "0"}
    for line in rest:
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    return words, fields


def _answer(writer: asyncio.StreamWriter, status: int, body: bytes, seal: str = "") -> None:
    head = f"HTTP/1.1 {status} {_STATUS.get(status, '')}\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}X-Unhang-Seal: {seal}\r\n\r\n".encode() + body)


class Client:
    """The way to one hub: one connection that stays."""

    def __init__(self, address: Address, key: bytes, job: str, node: str, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._key, self._job, self._node, self._tls = key, mark_of(job), node, tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._nonce, self._number = "", time.monotonic_ns()
        self.own_host = ""

    async def connect(self, limit_s: float = ANSWER_S) -> Hello:
        """Connects, and asks who is there.

        Raises:
            OSError: nobody answers within `limit_s` (a TimeoutError) or at all.
            Refused: it is no watcher, or one of another job or version.
        """
        self.close()
        async with asyncio.timeout(limit_s):
            self._streams = await asyncio.open_connection(
                *self.address, limit=MOST_HEAD, ssl=self._tls, server_hostname="" if self._tls else None
            )
            self.own_host = self._streams[1].get_extra_info("sockname")[0]
            status, _, body = await self._asked("GET /hello", b"")
        if status == 503:
            raise ConnectionError("it is busy")
        try:
            fields: dict[str, Any] = json.loads(body)
            hello = Hello(**{name: fields[name] for name in Hello._fields})
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(404, f"{self.address} is another program") from error
        if status != 200 or hello.version != VERSION:
            reason = f"{self.address} speaks version {hello.version} of the exchange, this node {VERSION}"
            raise Refused(426, f"{reason}: install one unhang on all nodes")
        if hello.job != self._job:
            raise Refused(404, f"{self.address} belongs to another job")
        self._nonce = hello.nonce
        return hello

    async def push(self, plain: bytes, wait_s: float = 0.0) -> bytes:
        """Sends a message; returns the answer, which may come `wait_s` later if there is no news.

        Raises:
            OSError: the hub does not answer, or somebody else does.
            Refused: it does not take the message.
        """
        body = pack(plain)
        self._number += 1
        digest = hashlib.sha256(body).hexdigest()
        seal = _seal(self._key, self._nonce, self._node, self._number, digest, len(body))
        fields = {"Node": self._node, "Number": self._number, "Digest": digest, "Seal": seal, "Wait": round(wait_s, 3)}
        head = f"POST /v{VERSION}/push", *(f"X-Unhang-{name}: {value}" for name, value in fields.items())
        async with asyncio.timeout(ANSWER_S + wait_s + len(body) / 1e6):
            status, given, answer = await self._asked(head[0], body, head[1:])
        if status != 200:
            raise Refused(status, answer.decode("utf-8", "replace")[:200])
        if not hmac.compare_digest(given, _seal_answer(self._key, seal, answer)):
            raise ConnectionError("an answer that the hub did not sign")
        return answer

    async def _asked(self, request: str, body: bytes, fields: tuple[str, ...] = ()) -> tuple[int, str, bytes]:
        if self._streams is None:
            raise ConnectionError("not connected")
        reader, writer = self._streams
        lines = (f"{request} HTTP/1.1", f"Host: {self.address}", f"Content-Length: {len(body)}", *fields, "", "")
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        try:
            words, given = _parsed(await reader.readuntil(b"\r\n\r\n"))
            size = int(given["content-length"])
            if size > MOST_ANSWER:
                raise ConnectionError("an answer that is too large")
            return int(words[1]), given.get("x-unhang-seal", ""), await reader.readexactly(size)
        except (EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise ConnectionError(f"no answer ({error})") from error

    def close(self) -> None:
        """Hangs up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
