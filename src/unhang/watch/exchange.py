"""HTTP between the watchers of one job: signed, fresh, bounded; on asyncio of the standard library.

A head is verified before its body is read, so a stranger gets no memory of ours. What is signed holds the hub's nonce and a
number that only grows: a message that was overheard is worth nothing a second time, nor at another hub. Answers are signed
over the request that they answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
import time
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

from unhang.errors import UnhangError
from unhang.watch.joining import Address

VERSION = 1
MOST_HEAD, MOST_PLAIN, MOST_ANSWER, ANSWER_S = 4096, 256 << 20, 1 << 20, 5.0


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


def seal(key: bytes, nonce: str, node: str, number: int, digest: str, size: int) -> str:
    """Of a message: who knows the key wrote it, for the hub with this nonce."""
    return _code(key, f"{nonce}|{node}|{number}|{digest}|{size}".encode())


def seal_answer(key: bytes, request: str, body: bytes) -> str:
    """Of an answer to the message with the seal `request`."""
    return _code(key, request.encode() + b"|" + body)


@lru_cache(maxsize=4)
def _keyed(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod="sha256")


def _code(key: bytes, data: bytes) -> str:
    """`hmac.digest` in a way that keeps the interpreter's lock: who gives it up with each message waits for it each time."""
    made = _keyed(key).copy()
    made.update(data)
    return made.hexdigest()


def parsed(head: bytes | bytearray) -> tuple[list[str], dict[str, str]]:
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
        own = seal(self._key, self._nonce, self._node, self._number, digest, len(body))
        fields = {"Node": self._node, "Number": self._number, "Digest": digest, "Seal": own, "Wait": round(wait_s, 3)}
        head = f"POST /v{VERSION}/push", *(f"X-Unhang-{name}: {value}" for name, value in fields.items())
        async with asyncio.timeout(ANSWER_S + wait_s + len(body) / 1e6):
            status, given, answer = await self._asked(head[0], body, head[1:])
        if status != 200:
            raise Refused(status, answer.decode("utf-8", "replace")[:200])
        if not hmac.compare_digest(given, seal_answer(self._key, own, answer)):
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
            words, given = parsed(await reader.readuntil(b"\r\n\r\n"))
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
