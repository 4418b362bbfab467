"""The watchers of one job, found and kept together by a thread of its own: who is the hub, what is said, who takes over.

The watcher's own loop never waits for the network: it leaves its state here, and takes what came in. A hub that is gone is
followed by the node that joined it first of those that are left; where nobody can be reached, each node judges alone.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from queue import SimpleQueue

import msgspec

from unhang.watch.exchange import VERSION, Client, Refused, key_of
from unhang.watch.joining import PORTS, Address, Join, is_loopback
from unhang.watch.many import Group
from unhang.watch.messages import LEAST_PAUSE_S, Orders, Push, Said, State
from unhang.watch.server import Server

FIRST_TRY_S, TRY_EVERY_S, SAID_AFTER_S = 0.2, 1.0, 30.0
HUB_LOST_S, LAST_LOST_S, SETTLE_S = 3.0, 0.5, 8.0
MOST_SUCCESSORS = 16
RELAY_PAUSE_S, GATHER_S, OWE_S = 0.5, 0.1, 3.0


_decode_push = msgspec.msgpack.Decoder(Push).decode
_decode_orders = msgspec.msgpack.Decoder(Orders).decode
_encode = msgspec.msgpack.Encoder().encode


def _demands(orders: Orders) -> tuple[object, ...]:
    sends = orders.send, orders.group_send, orders.group
    return orders.hub, orders.look, orders.confirm, orders.secure, *sends, orders.verdict


PackFiles = Callable[[bool], tuple[dict[str, bytes], list[str], bool]]


class Meeting(threading.Thread):
    """One node's part in the exchange.

    `pack`: the files that changed since it was last asked, or all of them, those that are gone, and whether nothing had to be left for the
    next time; called in this thread. `say`: takes lines for the screen.
    """

    def __init__(self, join: Join, pack: PackFiles, say: Callable[[str], None]) -> None:
        super().__init__(name="unhang-nodes", daemon=True)
        self.node, self.role = secrets.token_hex(8), "seeking"
        self.inbox: SimpleQueue[Said] = SimpleQueue()
        self.state, self.orders, self.heard_at = State(), Orders(), 0.0
        self.delivered = State()  # what the hub has heard, with all files
        self.asked: dict[str, tuple[int, tuple[int, ...]]] = {}  # who is to send files: `send`, `only`
        self.hub: Address | None = None
        self.via: dict[
            str, tuple[str, Address]
        ] = {}  # as the hub: who speaks through which node, and where that one listens
        self._group, self._owes_until = Group(), 0.0  # as one through which others speak
        self._unreachable: set[Address] = set()
        self.fellows: set[str] = set()  # as a hub that followed another one: who else knew that one
        self._how, self._pack, self._say_line = join, pack, say
        self._key = key_of(join.token, join.job)
        self._addresses: dict[str, Address] = {}
        self._unknown: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self.woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable when there are new orders
        self._is_over, self._said = False, set[str]()
        self._name = socket.gethostname()
        self._own: Address | None = None
        self._server = Server(
            self._key, join.job, self._on_message, self._answer, self._on_close, join.tls(is_server=True)
        )
        self._clock = (0, 0)

    # For the watcher's own loop

    def publish(self, state: State, is_urgent: bool) -> None:
        """What the others shall know. `is_urgent`: now, not with the next message."""
        self.state = state
        if is_urgent:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    def announce(self, nodes: Collection[str] | None = None) -> None:
        """Lets nodes that wait for orders know of them now: these, or all."""
        if nodes is not None:
            nodes = {self.via[node][0] if node in self.via else node for node in nodes}
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._server.news, nodes)

    def stop(self) -> None:
        """Ends the exchange. Blocks: up to half a second."""
        self._is_over = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
        if self.is_alive():
            self.join(0.5)

    # The thread

    def run(self) -> None:
        """Meets, and stays together until `stop`."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._meet())
        except Exception as error:  # noqa: BLE001 - the watch goes on alone
            self.role = "alone"
            self._say(f"the other nodes are lost ({type(error).__name__}: {error}); this node judges alone")

    def _say(self, line: str) -> None:
        if line not in self._said and not self._is_over:
            self._said.add(line)
            self._say_line(line)

    def _say_of_hub(self, line: str) -> None:
        """Of a hub that is gone when our ranks have ended, too, nobody needs to hear."""
        if not self.state.ranks or any(rank.dead_s < 0 for rank in self.state.ranks):
            self._say(line)

    async def _meet(self) -> None:
        try:
            if await self._bound():
                self._become_hub()
            await self._stay_together()
        finally:
            self._server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0.01)  # connections are torn down

    async def _stay_together(self) -> None:
        began = time.monotonic()
        while not self._is_over:
            if self.role == "hub":
                await self._pause(TRY_EVERY_S)
            elif client := await self._found():
                with closing(client):
                    via = await self._speak(client)
                if via is not None:
                    await self._speak_through(via)
                else:
                    await self._follow()
            elif self.role == "member":
                await self._follow()
            else:
                if time.monotonic() - began > SAID_AFTER_S:
                    self._say(f"no watcher answers at {self._how.hub}; this node judges alone until one does")
                await self._pause(TRY_EVERY_S)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause_s)
        self._wake.clear()

    async def _bound(self) -> bool:
        """Whether the hub's address is ours to listen at. One that another job listens at is left to it, and the next port tried."""
        host, first = self._how.hub
        for port in range(first, first + PORTS):
            for where in (host, None) if self._how.may_bind_all else (host,):
                try:
                    self._own = await self._server.start(await self._name_for_all(where), port)
                    return True
                except OSError as error:
                    if error.errno == errno.EADDRINUSE:
                        break
            else:
                return False  # the address is another machine's
            if await self._answers(Address(host, port)):
                return False  # a watcher of this job was faster
        return False

    async def _name_for_all(self, host: str | None) -> str | None:
        """Some machines have their own name as a loopback address: nobody else could reach them there."""
        if host is None or is_loopback(host):
            return host
        with suppress(OSError):
            found = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return None if all(is_loopback(str(info[4][0])) for info in found) else host
        raise OSError(errno.EADDRNOTAVAIL, "unknown host")

    async def _answers(self, address: Address) -> bool:
        client = self._client(address)
        try:
            await client.connect(limit_s=2.0)
            return True
        except (OSError, Refused):
            return False
        finally:
            client.close()

    def _client(self, address: Address) -> Client:
        return Client(address, self._key, self._how.job, self.node, self._how.tls(is_server=False))

    async def _found(self) -> Client | None:
        """The hub of this job: at its address, at one of the next ports, or where another one has followed it."""
        first, refusal = self._how.hub, ""
        known = [Address(host, port) for _, host, port in self.orders.successors if (host, port) != self._own]
        for address in (*known, *(Address(first.host, first.port + i) for i in range(PORTS))):
            client = self._client(address)
            try:
                if (await client.connect(limit_s=1.0)).is_hub:
                    return client
            except Refused as error:
                refusal = str(error)
            except OSError:
                if address.port != first.port:
                    break  # where nobody listens at a port, nobody went on to the next
            client.close()
        if refusal:
            self._say(f"{refusal}; this node judges alone until a watcher of its own job answers (--join-port)")
        return None

    # As a member

    async def _speak_through(self, address: Address) -> None:
        """Speaks to the hub through another node, as long as that one passes it on."""
        hub, self.orders = self.hub, msgspec.structs.replace(self.orders, via=None)
        with closing(self._client(address)) as client:
            try:
                await client.connect(limit_s=1.0)
                await self._speak(client, hub)
            except (OSError, Refused):
                self._unreachable.add(address)
        self.hub = hub

    async def _speak(self, client: Client, hub: Address | None = None) -> Address | None:
        """Tells the hub everything, and hears what it wants, until it is lost or we are; or until it names a node to speak through.

        `hub`: where it is, if this is such a node.

        Raises: Refused, OSError: that one does not pass it on.
        """
        if self._own is None:
            with suppress(OSError):
                self._own = await self._server.start(client.own_host, 0)
        self.hub, needs_all, lost_at, wait_s = hub or client.address, True, 0.0, 0.0
        while True:
            is_last = self._is_over
            try:
                is_new = await self._push(client, needs_all, 0.0 if is_last else wait_s)
                needs_all, lost_at = self.orders.needs_all, 0.0
                pause_s = min(self.orders.pause_s, RELAY_PAUSE_S) if self._group.nodes else self.orders.pause_s
                wait_s = pause_s if pause_s > LEAST_PAUSE_S and not self._owes() else 0.0
                if hub is None and not is_last and (via := self._to_speak_through()) is not None:
                    return via
            except Refused as refusal:
                if hub is not None:
                    raise
                self._say(f"{self.hub} refuses this node: {refusal}; it judges alone")
                self.role = "alone"
                return None
            except OSError:
                if hub is not None:
                    raise
                now = time.monotonic()
                lost_at, needs_all, wait_s = lost_at or now, True, 0.0
                if now - lost_at > (LAST_LOST_S if self.state.is_over else HUB_LOST_S):
                    return None
            if is_last:
                return None
            if lost_at or is_new or not wait_s:
                await self._pause(FIRST_TRY_S if lost_at else pause_s * random.uniform(0.8, 1.0))
                if self._group.nodes and not lost_at:
                    await asyncio.sleep(GATHER_S)
            if lost_at:
                with suppress(OSError, Refused):
                    await client.connect(limit_s=1.0)

    def _to_speak_through(self) -> Address | None:
        via = Address(*self.orders.via) if self.orders.via else None
        return None if via in self._unreachable else via

    async def _push(self, client: Client, needs_all: bool, wait_s: float = 0.0) -> bool:
        """Tells what is new. Returns whether there are new orders. `wait_s`: how long the answer may wait for them."""
        state = self.state  # before the files: they are at least as new
        files, gone, is_whole = self._pack(needs_all)
        if not is_whole:
            state = msgspec.structs.replace(state, looked=0, secured=0, is_over=False)
        if needs_all:
            self._unknown |= {*self._group.begin_again()}
        own, sent_ns = self._own or Address("", 0), time.time_ns()
        push = Push(VERSION, self._name, own.host, own.port, state, files, gone, *self._clock)
        push.group, push.rows, push.left = self._group.take()
        answer = await client.push(_encode(push), wait_s)
        trip_ns = max(1, time.time_ns() - sent_ns)
        orders, self.delivered = _decode_orders(answer), state
        if not wait_s and (not self._clock[1] or trip_ns < self._clock[1]):
            self._clock = (orders.now_ns - (sent_ns + trip_ns // 2), trip_ns)
        is_new = _demands(orders) != _demands(self.orders)
        self.orders, self.heard_at, self.role = orders, time.monotonic(), "member"
        self._server.passes_on = True
        if is_new:
            os.eventfd_write(self.woken, 1)
            self._owes_until = time.monotonic() + OWE_S
            self._server.news()
        return is_new

    def _owes(self) -> bool:
        """Whether nodes that speak through this one have yet to do what was just asked."""
        return time.monotonic() < self._owes_until and self._group.owes(self.orders.look, self.orders.confirm)

    async def _follow(self) -> None:
        """The hub does not answer any more: the first of its successors that can be reached is the next one."""
        if self.role == "alone" or self._is_over:
            await self._pause(TRY_EVERY_S)
            return
        self._server.passes_on = False
        until, lost, self.role = time.monotonic() + SETTLE_S, self.hub, "seeking"
        while time.monotonic() < until and not self._is_over and lost is not None:
            for node, host, port in (("", *lost), *self.orders.successors):
                if node == self.node:
                    self._say_of_hub(f"the hub at {lost} is gone; this node takes over")
                    self._become_hub()
                    return
                with closing(self._client(Address(host, port))) as client:
                    try:
                        is_hub = (await client.connect(limit_s=1.0)).is_hub
                    except (OSError, Refused):
                        continue  # it is gone, too
                if is_hub:
                    if node:
                        self._say_of_hub(f"the hub at {lost} is gone; {client.address} has taken over")
                    return
                break  # it has not noticed yet
            await self._pause(FIRST_TRY_S)
        self.role = "alone"
        self._say_of_hub(f"the hub at {lost} cannot be reached any more; this node judges alone")

    # As the hub

    def _become_hub(self) -> None:
        self.fellows = {node for node, *_ in self.orders.successors if node != self.node}
        self._server.is_hub, self.role, self.hub = True, "hub", self._own
        self.orders = Orders(hub=self._server.nonce)

    def _on_message(self, node: str, plain: bytes) -> None:
        try:
            push = _decode_push(plain)
        except msgspec.DecodeError as error:
            raise Refused(400, f"a message that makes no sense ({error})") from error
        if push.version != VERSION:
            raise Refused(
                426, f"version {push.version} of the exchange, here it is {VERSION}: install one unhang on all nodes"
            )
        if node not in self._addresses and not push.files:
            self._unknown.add(node)
        self._addresses[node] = Address(push.host, push.port)
        if self.role == "member":
            if self._group.hear(node, push):
                self._wake.set()
            return
        now = time.monotonic()
        self.inbox.put(Said(node, self._addresses[node], push, now, push.rows))
        for name, one in push.group.items():
            self.inbox.put(Said(name, Address(one.host, one.port), one, now, is_direct=False))
        for name in push.left:
            self.inbox.put(Said(name, Address("", 0), None, now, is_direct=False))

    def _answer(self, node: str) -> bytes:
        orders = msgspec.structs.replace(self.orders, now_ns=time.time_ns(), needs_all=node in self._unknown)
        self._unknown.discard(node)
        if self.role == "member":  # it is passed on
            orders.now_ns += self._clock[0]
            orders.via, orders.group, orders.send = None, (), orders.group_send if node in orders.group else 0
            return _encode(orders)
        if node in self.asked:
            orders.send, orders.only = self.asked[node]
        if node in self.via:
            orders.via = self.via[node][1]
        elif behind := tuple(asked for asked in self.asked if self.via.get(asked, ("",))[0] == node):
            orders.group = behind
            orders.group_send, orders.only = self.asked[behind[0]]
        return _encode(orders)

    def _on_close(self, node: str) -> None:
        if self.role == "member":
            self._group.leave(node)
            self._addresses.pop(node, None)
        else:
            self.inbox.put(Said(node, self._addresses.get(node, Address("", 0)), None, time.monotonic()))
