"""The exchange between watchers: who is let in, what is refused, and that neither side can be made to wait or to swallow too much."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.slowness import slowness

from unhang.watch import exchange, server
from unhang.watch.exchange import Client, Refused, key_of, pack, unpack
from unhang.watch.joining import Address
from unhang.watch.server import Server

TOKEN = "a token that nobody knows"
JOB = "MASTER_ADDR=node0"
CLIENTS: list[Client] = []


class Hub:
    """A server that keeps what it gets."""

    def __init__(self, token: str = TOKEN, job: str = JOB) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.closed: list[str] = []
        self.orders = b"orders"
        self.server = Server(key_of(token, job), job, self._take, lambda _: self.orders, self.closed.append)
        self.server.is_hub = True

    def _take(self, node: str, plain: bytes) -> None:
        self.got.append((node, plain))


@contextlib.asynccontextmanager
async def _listening(hub: Hub) -> AsyncIterator[Address]:
    address = await hub.server.start("127.0.0.1", 0)
    try:
        yield address
    finally:
        hub.server.close()
        await _all_end()


async def _all_end() -> None:
    """What serves a connection ends with it; the loop must not be closed before."""
    while CLIENTS:
        CLIENTS.pop().close()
    await asyncio.sleep(0.02)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0.02)
    gc.collect()


def _client(address: Address, token: str = TOKEN, job: str = JOB, node: str = "n1") -> Client:
    CLIENTS.append(Client(address, key_of(token, job), job, node))
    return CLIENTS[-1]


def _with_hub(body: Callable[[Hub, Address], Awaitable[None]], hub: Hub | None = None) -> Hub:
    hub = hub or Hub()

    async def run() -> None:
        async with _listening(hub) as address:
            await body(hub, address)

    asyncio.run(run())
    return hub


async def _raw(address: Address, *requests: bytes) -> bytes:
    """What is answered to these bytes until the other side hangs up, or says nothing more."""
    reader, writer = await asyncio.open_connection(*address)
    found = b""
    for request in requests:
        writer.write(request)
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.5):
            while data := await reader.read(65536):
                found += data
    writer.close()
    return found


def _head(
    hub: Hub, body: bytes, number: int = 1, size: int | None = None, path: str = "/v1/push", **other: str
) -> bytes:
    """A request as a node that knows the token would write it. `other`: fields that are given instead."""
    digest, size = hashlib.sha256(body).hexdigest(), len(body) if size is None else size
    seal = exchange.seal(key_of(TOKEN, JOB), hub.server.nonce, "n1", number, digest, size)
    fields = {"Content-Length": str(size), "X-Unhang-Node": "n1", "X-Unhang-Number": str(number)}
    fields |= {"X-Unhang-Digest": digest, "X-Unhang-Seal": seal, **other}
    return "\r\n".join([f"POST {path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items()), "", ""]).encode()


def test_a_message_comes_and_is_answered() -> None:
    async def body(hub: Hub, address: Address) -> None:
        client = _client(address)
        assert (await client.connect()).is_hub
        assert [await client.push(b"one"), await client.push(b"two" * 100_000)] == [b"orders", b"orders"]
        client.close()
        await asyncio.sleep(0.05)

    hub = _with_hub(body)
    assert hub.got == [("n1", b"one"), ("n1", b"two" * 100_000)]
    assert hub.closed == ["n1"]


def test_another_token_is_refused_before_its_body_is_read() -> None:
    async def body(hub: Hub, address: Address) -> None:
        client = _client(address, token="another token, as long")
        await client.connect()
        with pytest.raises(Refused, match="token differs"):
            await client.push(b"x")
        forged = _head(hub, b"x", size=server.MOST_BODY, **{"X-Unhang-Seal": "0" * 64})
        assert b" 401 " in await _raw(address, forged)

    assert _with_hub(body).got == []


def test_another_job_is_told_at_once() -> None:
    async def body(hub: Hub, address: Address) -> None:
        with pytest.raises(Refused, match="another job"):
            await _client(address, job="MASTER_ADDR=node9").connect()

    _with_hub(body)


def test_an_answer_that_the_hub_did_not_sign_is_no_order() -> None:
    async def body(hub: Hub, address: Address) -> None:
        client = _client(address)
        await client.connect()
        hub.server._key = b"somebody else"
        client._key, key = b"somebody else", client._key
        push = asyncio.ensure_future(client.push(b"x"))  # the request is in order, the answer is not
        await asyncio.sleep(0)
        client._key = key
        with pytest.raises(ConnectionError, match="did not sign"):
            await push

    _with_hub(body)


def test_a_message_that_was_overheard_is_worth_nothing() -> None:
    packed = pack(b"end the job")

    async def body(hub: Hub, address: Address) -> None:
        overheard = _head(hub, packed, number=7) + packed
        assert b" 200 " in await _raw(address, overheard)
        assert b"seen before" in await _raw(address, overheard)
        older = _head(hub, packed, number=6) + packed
        assert b"seen before" in await _raw(address, older)
        other = Hub()
        async with _listening(other) as elsewhere:  # with the same token, as the next job of this folder
            assert b" 401 " in await _raw(elsewhere, overheard)
        assert other.got == []

    assert len(_with_hub(body).got) == 1


def test_a_flood_is_refused() -> None:
    async def body(hub: Hub, address: Address) -> None:
        client = _client(address)
        await client.connect()
        with pytest.raises(Refused, match="messages a second") as refused:
            await _flood(client)
        assert refused.value.status == 429

    started = time.monotonic()
    got = _with_hub(body).got
    assert len(got) <= server.MOST_AT_ONCE + server.MESSAGES_PER_S * (time.monotonic() - started) + 1


async def _flood(client: Client) -> None:
    for _ in range(20 * int(server.MOST_AT_ONCE)):
        await client.push(b"x")


def test_strangers_leave_room_for_those_who_know_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_OF_STRANGERS", 5)
    monkeypatch.setattr(server, "HEAD_S", 0.3)
    monkeypatch.setattr(server, "LIMITS_S", 0.0)

    async def body(hub: Hub, address: Address) -> None:
        friend = _client(address)
        await friend.connect()
        assert await friend.push(b"x") == b"orders"
        silent = [await asyncio.open_connection(*address) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert await friend.push(b"y") == b"orders"
        await asyncio.sleep(0.4)  # those who say nothing are hung up
        other = _client(address, node="n2")
        await other.connect()
        assert await other.push(b"z") == b"orders"
        for _, writer in silent:
            writer.close()

    assert [plain for _, plain in _with_hub(body).got] == [b"x", b"y", b"z"]


@pytest.mark.parametrize(
    ("request_of", "answer"),
    [
        (lambda hub: _head(hub, b"x", path="/v2/push") + b"x", b" 426 "),
        (lambda hub: _head(hub, b"x", path="/metrics"), b" 404 "),
        (lambda hub: _head(hub, b"x", size=server.MOST_BODY + 1), b" 413 "),
        (lambda hub: _head(hub, pack(b"x")) + pack(b"y"), b" 400 "),
        (lambda hub: _head(hub, pack(b"x" * 999)[:-4]) + pack(b"x" * 999)[:-4], b" 400 "),
        (lambda hub: _head(hub, b"no zlib") + b"no zlib", b" 400 "),
        (lambda hub: _head(hub, b"x", **{"Content-Length": "many"}), b""),
        (lambda hub: b"GET / HTTP/1.1\r\n\r\n", b" 404 "),
        (lambda hub: b"\x16\x03\x01 hello\r\n\r\n", b" 400 "),
        (lambda hub: b"x" * 100_000, b""),
        (lambda hub: _head(hub, pack(b"cut"))[:-30], b""),
        (lambda hub: _head(hub, pack(b"cut")) + pack(b"cut")[:3], b""),
    ],
)
def test_what_makes_no_sense_is_refused_and_harms_nobody(request_of: Callable[[Hub], bytes], answer: bytes) -> None:
    async def body(hub: Hub, address: Address) -> None:
        assert answer in await _raw(address, request_of(hub))
        client = _client(address, node="n2")
        await client.connect()
        assert await client.push(b"in order") == b"orders"

    assert _with_hub(body).got == [("n2", b"in order")]


def test_a_small_body_cannot_become_a_huge_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_PLAIN", 1000)
    assert unpack(pack(b"x" * 999)) == b"x" * 999
    with pytest.raises(Refused, match="too large"):
        unpack(zlib.compress(b"\0" * 1_000_000))


def test_who_does_not_answer_costs_a_second_and_no_more() -> None:
    async def body() -> None:
        mute = await asyncio.start_server(_says_nothing, "127.0.0.1", 0)
        address = Address(*mute.sockets[0].getsockname()[:2])
        with pytest.raises(TimeoutError):
            await _client(address).connect(limit_s=0.2)
        mute.close()
        other = await asyncio.start_server(_greets, "127.0.0.1", 0)
        with pytest.raises(Refused):
            await _client(Address(*other.sockets[0].getsockname()[:2])).connect(limit_s=2)
        other.close()
        await _all_end()

    asyncio.run(body())


async def _says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        while await reader.read(1000):
            pass


async def _greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 smtp ready\r\n\r\n")
    await reader.read(1)
    writer.close()


def test_an_answer_waits_for_news_and_no_longer_than_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_WAIT_S", 1000.0)

    async def body(hub: Hub, address: Address) -> None:
        client = _client(address)
        await client.connect()
        started = time.monotonic()
        assert await client.push(b"nothing new", wait_s=0.2) == b"orders"
        assert time.monotonic() - started >= 0.2 - server.BEAT_S  # beats end early, never late
        waiting = asyncio.ensure_future(client.push(b"nothing new", wait_s=900.0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        hub.orders = b"look"
        hub.server.news()
        async with asyncio.timeout(10 * slowness()):
            assert await waiting == b"look"
        hub.server.news()  # while it was on its way
        async with asyncio.timeout(10 * slowness()):
            await client.push(b"nothing new", wait_s=900.0)

    assert len(_with_hub(body).got) == 3
