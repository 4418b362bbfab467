"""The hub's side of the exchange: many connections that stay, each message verified before its body is read."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import secrets
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from unhang.watch.exchange import MOST_HEAD, VERSION, Hello, Refused, mark_of, parsed, seal, seal_answer, unpack
from unhang.watch.joining import Address

MOST_BODY, MOST_CONNECTIONS, MOST_OF_STRANGERS = 32 << 20, 20_000, 256
MESSAGES_PER_S, MOST_AT_ONCE = 20.0, 60.0
IDLE_S, HEAD_S, BODY_S, MOST_WAIT_S, BEAT_S, LIMITS_S = 120.0, 5.0, 20.0, 5.0, 0.05, 0.5
_STATUS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict", 413: "Too Large"} | {
    426: "Upgrade Required",
    429: "Too Many Requests",
    503: "Unavailable",
}


@dataclass
class _Sender:
    """What is known of one node's messages."""

    number: int = -1
    edition: int = 0  # of the orders that it has heard
    left: float = MOST_AT_ONCE
    seen_at: float = field(default_factory=time.monotonic)
    waits: _Connection | None = None  # whose answer waits for news

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
        self.nonce, self.is_hub, self.passes_on = secrets.token_hex(16), False, False
        self.make_answer, self.edition = answer, 0
        self.on_message, self.on_close = on_message, on_close
        self.senders: dict[str, _Sender] = {}
        self.connections, self.strangers = set[_Connection](), 0
        self._key, self._job, self._tls = key, mark_of(job), tls
        self._due: dict[int, list[_Connection]] = {}  # by the beat at which answers are due
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None

    async def start(self, host: str | None, port: int) -> Address:
        """Listens. `host` None: on all addresses.

        Raises:
            OSError: the address is not ours, or taken.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), host, port, ssl=self._tls, backlog=1024, reuse_address=True
        )
        self._beating = asyncio.ensure_future(self._beat())
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def _beat(self) -> None:
        looked_at = 0.0
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            self._let_go(now)
            if now - looked_at > LIMITS_S:
                looked_at = now
                for connection in [c for c in self.connections if c.limit_at < now]:
                    connection.abort()

    def _let_go(self, until: float) -> None:
        for beat in [beat for beat in self._due if beat * BEAT_S <= until]:
            for connection in self._due.pop(beat):
                connection.answer(beat)

    def wait(self, connection: _Connection, beat: int) -> None:
        """Keeps an answer until there is news, or this beat."""
        self._due.setdefault(beat, []).append(connection)

    def news(self, nodes: Iterable[str] | None = None) -> None:
        """Lets the answers go that wait, and those at once that come to hear of it: of these nodes, or of all."""
        if nodes is None:
            self.edition += 1
            self._let_go(math.inf)
        for node in nodes or ():
            sender = self.senders.setdefault(node, _Sender())
            sender.edition = -1
            if sender.waits is not None:
                sender.waits.answer()

    def close(self) -> None:
        """Stops listening, and hangs up."""
        if self._server is not None:
            self._server.close()
        if self._beating is not None:
            self._beating.cancel()
        for connection in list(self.connections):
            connection.abort()

    def hello(self) -> bytes:
        """What anybody may hear."""
        return json.dumps(Hello(VERSION, self.nonce, self._job, self.is_hub)._asdict()).encode()

    def verify(self, request: _Request) -> _Sender:
        """Who sends this. Raises: Refused: it is not believed, or not taken."""
        expected = seal(self._key, self.nonce, request.node, request.number, request.digest, request.size)
        if not hmac.compare_digest(request.seal, expected):
            raise Refused(401, "the token differs, or the message was not meant for this watcher")
        if not 0 <= request.size <= MOST_BODY:
            raise Refused(413, f"a body of {request.size} bytes")
        if not (self.is_hub or self.passes_on):
            raise Refused(409, "this watcher is not the hub")
        sender = self.senders.setdefault(request.node, _Sender())
        if request.number <= sender.number:
            raise Refused(409, "a message that was seen before")
        if not sender.may_send(time.monotonic()):
            raise Refused(429, f"more than {MESSAGES_PER_S:g} messages a second")
        return sender

    def sealed(self, request: _Request, body: bytes) -> str:
        """The seal of an answer."""
        return seal_answer(self._key, request.seal, body)


class _Request(NamedTuple):
    """The head of a message. `wait_s`: how long its answer may wait for news."""

    node: str
    number: int
    size: int
    digest: str
    seal: str
    wait_s: float


def _request(path: str, fields: dict[str, str]) -> _Request:
    if not path.startswith("/v"):
        raise Refused(404, "nothing is here")
    if path != f"/v{VERSION}/push":
        raise Refused(426, f"this node speaks version {VERSION} of the exchange: install one unhang on all nodes")
    who, number, size = fields["x-unhang-node"][:32], int(fields["x-unhang-number"]), int(fields["content-length"])
    wait_s = min(float(fields.get("x-unhang-wait", 0)), MOST_WAIT_S)
    return _Request(who, number, size, fields["x-unhang-digest"], fields["x-unhang-seal"], wait_s)


class _Connection(asyncio.Protocol):
    """One connection to the server. No coroutine, no timer: of 12,500 nodes, they would be most of what a message costs."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server, self._node, self._buffer = server, "", bytearray()
        self._request: _Request | None = None  # of which the body, or the answer, is not complete
        self._due: int | None = None  # the answer waits for news, or this beat
        self.limit_at = time.monotonic() + HEAD_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, server = cast("asyncio.Transport", transport), self._server
        server.connections.add(self)
        server.strangers += 1
        if len(server.connections) > MOST_CONNECTIONS or server.strangers > MOST_OF_STRANGERS:
            self._refuse(Refused(503, "too many connections"))

    def connection_lost(self, _: Exception | None) -> None:
        server = self._server
        server.connections.discard(self)
        server.strangers -= not self._node
        if self._node:
            if (sender := server.senders[self._node]).waits is self:
                sender.waits = None
            server.on_close(self._node)

    def abort(self) -> None:
        """Hangs up."""
        self.limit_at = math.inf
        self.transport.abort()

    def pause_writing(self) -> None:
        self.limit_at = time.monotonic() + BODY_S
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while self._due is None and not self.transport.is_closing() and self._one():
                pass
        except Refused as refusal:
            self._refuse(refusal)
        except (ValueError, KeyError):
            self.transport.close()  # no HTTP
        if len(self._buffer) > MOST_HEAD and self._due is not None:
            self.abort()  # nobody sends more before the answer came

    def _refuse(self, refusal: Refused) -> None:
        _answer(self.transport, refusal.status, str(refusal).encode())
        self._buffer.clear()
        self.transport.close()

    def _one(self) -> bool:
        """Takes what has come of a request; returns whether it was whole."""
        server = self._server
        if (request := self._request) is None:
            end = self._buffer.find(b"\r\n\r\n", 0, MOST_HEAD)
            if end < 0:
                if len(self._buffer) >= MOST_HEAD:
                    raise ValueError("no head")
                return False
            (method, path, *_), fields = parsed(self._buffer[:end])
            del self._buffer[: end + 4]
            self.limit_at = time.monotonic() + (IDLE_S if self._node else HEAD_S)
            if (method, path) == ("GET", "/hello"):
                _answer(self.transport, 200, server.hello())
                return True
            if method != "POST":
                raise Refused(404, "nothing is here")
            request = _request(path, fields)
            server.verify(request)
            self._request, self.limit_at = request, time.monotonic() + BODY_S
        if len(self._buffer) < request.size:
            return False
        body = bytes(memoryview(self._buffer)[: request.size])
        del self._buffer[: request.size]
        self._take(request, body)
        return True

    def _take(self, request: _Request, body: bytes) -> None:
        server, sender, now = self._server, self._server.senders[request.node], time.monotonic()
        if request.number <= sender.number:
            raise Refused(409, "a message that was seen before")
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), request.digest):
            raise Refused(400, "a body that is not what was signed")
        sender.number = request.number
        server.on_message(request.node, unpack(body))
        server.strangers -= not self._node
        self._node, self.limit_at = request.node, now + IDLE_S
        due = int((now + request.wait_s) / BEAT_S)
        self._due, sender.waits = due, self
        if due * BEAT_S > now and sender.edition == server.edition:
            server.wait(self, due)
        else:
            self.answer()

    def answer(self, due: int | None = None) -> None:
        """Answers the request that waits, if there is one. `due`: only one that waits for this beat."""
        request, server = self._request, self._server
        if request is None or self._due is None or (due is not None and due != self._due):
            return
        self._request = self._due = None
        sender = server.senders[self._node]
        sender.edition, sender.waits = server.edition, None
        answer = server.make_answer(self._node)
        _answer(self.transport, 200, answer, server.sealed(request, answer))
        if self._buffer:
            self.data_received(b"")


def _answer(transport: asyncio.Transport, status: int, body: bytes, seal: str = "") -> None:
    head = f"HTTP/1.1 {status} {_STATUS.get(status, '')}\r\nContent-Length: {len(body)}\r\n"
    transport.write(f"{head}X-Unhang-Seal: {seal}\r\n\r\n".encode() + body)
