"""What learner and generators write to each other in a store, the weights themselves where there is no group, and the generator's side of it."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from unhang.errors import WeightSyncFailed
from unhang.inside.guards import checksums
from unhang.inside.guards.board import connected, innermost
from unhang.inside.guards.words import in_words, log

CHUNK_BYTES = 4 << 20
_ANSWER_LIMIT_S = 10.0
# No key holds this; expecting it changes nothing, and a store gives it back only where the key is missing.
_NOTHING = "a05c0bde6f9b4c0c8f5bb7b0d0c5a1de"
TAG = "weight_sync"
# What the learner orders, and what a generator says of itself.
PAUSE, SEND, RUN, STOP, OVER = "pause", "send", "run", "stop", "over"
PAUSED, RECEIVING, HAS, FAILED, RUNNING, GONE = "paused", "receiving", "has", "failed", "running", "gone"
_POLL_S = 0.005


class StoreLost(Exception):
    """The store does not answer: its host has ended, or the network is gone."""


class Order(NamedTuple):
    """What the generators are to do.

    version: on its way. committed, by: the last version that all generators had, and the number of the order that brought it;
    in every order, for a generator that missed one. sign: changes as long as the learner lives and works on it.
    """

    number: int = 0
    state: str = RUN
    version: int = 0
    committed: int = 0
    by: int = 0
    through_group: bool = False
    reason: str = ""
    sign: int = 0

    def text(self) -> str:
        """As it stands in the store."""
        return json.dumps(self._asdict(), sort_keys=True)


class Status(NamedTuple):
    """Where one generator is: with which order, and what it has done of it. `came`: what failed had begun to arrive over the group."""

    order: int = 0
    state: str = ""
    version: int = 0
    text: str = ""
    came: bool = False


class Line:
    """The store as both sides see it. Each call is one question, with a limit of its own."""

    def __init__(self, store: Any, name: str) -> None:
        import torch.distributed as dist

        try:
            own = connected(store)
            if getattr(innermost(store), "port", 0):
                own.set_timeout(timedelta(seconds=_ANSWER_LIMIT_S))
        except RuntimeError as error:
            raise StoreLost(str(error)) from error
        self._store = dist.PrefixStore(f"weight_sync/{name}", own)

    def _asked(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except RuntimeError as error:  # torch's DistNetworkError and DistStoreError are RuntimeErrors
            raise StoreLost(str(error).splitlines()[0] if str(error) else type(error).__name__) from error

    def order(self) -> Order:
        """The order that stands."""
        return Order(**json.loads(self._get("order") or "{}"))

    def change(self, known: Order, new: Order) -> bool:
        """Replaces the order, if it is still the known one."""
        expected = known.text() if self._get("order") else ""
        return bool(self._asked(self._store.compare_set, "order", expected, new.text()).decode() == new.text())

    def status(self, generator: int) -> Status:
        """Where a generator is."""
        return Status(**json.loads(self._get(f"at/{generator}") or "{}"))

    def put_status(self, generator: int, status: Status) -> None:
        """Says where this generator is."""
        self._asked(self._store.set, f"at/{generator}", json.dumps(status._asdict()))

    def put(self, key: str, value: str | bytes) -> None:
        """Writes anything else."""
        self._asked(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        """Reads what is there.

        Raises:
            LookupError: it is not.
        """
        found = self._read(key)
        if found is None:
            raise LookupError("the learner has taken back what it sent")
        return found

    def delete(self, key: str) -> None:
        """Some stores cannot; they keep it."""
        with suppress(Exception):
            self._store.delete_key(key)

    def _get(self, key: str) -> str:
        return (self._read(key) or b"").decode()

    def _read(self, key: str) -> bytes | None:
        """A store's `get` waits for a key that is missing, even if it was there a moment ago; this question does not."""
        found = bytes(self._asked(self._store.compare_set, key, _NOTHING, _NOTHING))
        return None if found == _NOTHING.encode() else found


def plan_of(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What the receivers must know beforehand: names, shapes, dtypes, and a checksum of everything."""
    rows = [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()]
    return {"tensors": rows, "checksum": checksum_of(tensors)}


def checksum_of(tensors: Mapping[str, Any]) -> int:
    """One number for all tensors in their order, wherever they lie."""
    return int(checksums.total(checksums.checksums(list(tensors.values()))))


def room_for(plan: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Empty tensors for a plan: the weights in use stay as they are until all of the new ones are here."""
    torch: Any = sys.modules["torch"]
    return {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device=device) for name, shape, dtype in plan["tensors"]
    }


def as_octets(tensor: Any) -> Any:
    """The tensor's bytes as a flat tensor, which every transport can carry; a view where it is contiguous."""
    torch: Any = sys.modules["torch"]
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def write(line: Line, number: int, tensors: Mapping[str, Any], went_on: Callable[[], None]) -> list[str]:
    """Puts the tensors into the store; returns the keys. `went_on` is called after each part."""
    keys = []
    for index, tensor in enumerate(tensors.values()):
        octets = as_octets(tensor).cpu()
        for first in range(0, len(octets), CHUNK_BYTES):
            part = octets[first : first + CHUNK_BYTES]
            keys.append(f"data/{number}/{index}/{first}")
            line.put(keys[-1], ctypes.string_at(part.data_ptr(), len(part)))
            went_on()
    return keys


def read(line: Line, number: int, room: Mapping[str, Any]) -> None:
    """Gets them from there."""
    torch: Any = sys.modules["torch"]
    for index, tensor in enumerate(room.values()):
        octets = as_octets(tensor)
        for first in range(0, len(octets), CHUNK_BYTES):
            part = torch.frombuffer(bytearray(line.get(f"data/{number}/{index}/{first}")), dtype=torch.uint8)
            octets[first : first + CHUNK_BYTES].copy_(part)


def broadcast(group: Any, source: int, tensors: Mapping[str, Any], limit_s: float, went_on: Callable[[], None]) -> None:
    """Sends the tensors over the group, or receives them there, one after the other.

    Blocks: up to `limit_s` for each.

    Raises:
        TimeoutError: one did not get through; the group cannot be used any more.
    """
    import torch.distributed as dist

    for name, tensor in tensors.items():
        octets = as_octets(tensor)
        if not len(octets):
            continue
        work = dist.broadcast(octets, src=source, group=group, async_op=True)
        # Until it ends, it writes into its buffer, whoever has given up.
        _under_way.append((work, octets))
        until = time.monotonic() + limit_s
        while not work.is_completed():
            if time.monotonic() > until:
                raise TimeoutError(f"{name} did not get through within {limit_s:g} s")
            went_on()
            time.sleep(0.002)
        _under_way.pop()
        work.wait()
        if octets.data_ptr() != tensor.data_ptr():
            raise ValueError(f"{name} lies in pieces and cannot be received into")


_under_way: list[Any] = []


class LearnerLost(Exception):
    """No sign of life from the learner within the limit."""


@dataclass
class Receiver:
    """A generator. version: of the weights that it has. handled: number of the last order that is over for it."""

    rank: int
    learner: int
    line: Line
    limit_s: float
    group: Any = None
    device: Any = "cpu"
    stops_on_loss: bool = False
    version: int = 0
    handled: int = 0
    is_over: bool = False
    _known: Order = field(default_factory=Order)
    _seen: float = 0.0
    # What has arrived: for which order, and which version. Then what all have, and is to be used.
    _staged: dict[str, Any] | None = None
    _staged_by: int = 0
    _staged_version: int = 0
    _ready: dict[str, Any] | None = None

    def begin(self) -> None:
        """Lets the learner know that this generator is there."""
        self.line.put_status(self.rank, Status(self.handled, RUNNING, self.version))

    def leave(self) -> None:
        """Lets it know not to wait for this one any more."""
        self.line.put_status(self.rank, Status(self.handled, GONE, self.version))

    def take(self) -> dict[str, Any] | None:
        """Looks at the order; obeys it until it is over. Returns the new weights, or None where it brought none.

        Raises:
            StoreLost: the store does not answer.
            WeightSyncFailed: the learner stops the generators, or is lost.
        """
        self._seen = time.monotonic()
        self._obey()
        ready, self._ready = self._ready, None
        return ready

    def _obey(self) -> None:
        order = self._look()
        while order.number > self.handled:
            if order.state == OVER:
                self.handled, self.is_over = order.number, True
            elif order.state == STOP:
                self.handled, self.is_over = order.number, True
                self.leave()
                raise WeightSyncFailed(f"the learner stopped generator {self.rank}: {order.reason}")
            elif order.state == RUN:
                self._go_on(order)
            elif not self._obeyed(order):
                return
            else:
                order = self._look()

    def lost(self, why: str) -> None:
        """Goes on without the learner, and says so.

        Raises:
            WeightSyncFailed: stopping was asked for.
        """
        if self.stops_on_loss:
            self.is_over = True
            raise WeightSyncFailed(f"generator {self.rank}: {why}")
        log(TAG, f"generator {self.rank}: {why}; it goes on with version {self.version}")

    def _obeyed(self, order: Order) -> bool:
        """One round of a pause; False where it is over because the learner is lost."""
        try:
            if self.line.status(self.rank).order != order.number:
                self._staged = None
                self._say(order, PAUSED)
            if order.state == SEND and self._staged is None:
                self._stage(order)
            self._check_patience()
            time.sleep(_POLL_S)
        except LearnerLost:
            return not self._lapsed(order)
        return True

    def _look(self) -> Order:
        order = self.line.order()
        if order != self._known:
            self._known, self._seen = order, time.monotonic()
            if self._staged and order.by == self._staged_by:
                self.version, self._ready, self._staged = self._staged_version, self._staged, None
        return order

    def _check_patience(self) -> None:
        if time.monotonic() - self._seen > self.limit_s:
            raise LearnerLost

    def _say(self, order: Order, state: str, text: str = "", came: bool = False) -> None:
        self.line.put_status(self.rank, Status(order.number, state, self.version, text, came))

    def _stage(self, order: Order) -> None:
        came = False
        try:
            plan = json.loads(self.line.get(f"plan/{order.number}"))
            room = room_for(plan, self.device)
            if order.through_group:
                if self.group is None:
                    raise ValueError("the learner sends over a group, and this generator was given none")
                self._say(order, RECEIVING)
                came = True
                broadcast(self.group, self.learner, room, self.limit_s, self._check_order)
            else:
                read(self.line, order.number, room)
            if checksum_of(room) != plan["checksum"]:
                raise ValueError("what arrived is not what was sent: the checksums differ")
        except LearnerLost:
            raise
        except Exception as error:  # noqa: BLE001 - the learner is informed, and the old weights stay
            self._staged = {}
            self._say(order, FAILED, in_words(error), came)
            return
        self._staged, self._staged_by, self._staged_version = room, order.number, order.version
        self._say(order, HAS)

    def _check_order(self) -> None:
        """Called while a tensor is on its way: the learner may have given up or died."""
        if time.monotonic() - self._seen > self.limit_s / 8:
            order = self._look()
            if order.state not in (PAUSE, SEND):
                raise ConnectionError(f"the learner broke off: {order.reason}")
        self._check_patience()

    def _go_on(self, order: Order) -> None:
        """The order to go on: with the new weights if all have them, else with the old ones."""
        self.handled, self._staged = order.number, None
        if order.reason:
            log(TAG, f"generator {self.rank} goes on with version {self.version}: {order.reason}")
        elif order.committed > self.version:
            log(TAG, f"generator {self.rank} missed version {order.committed}, and has {self.version}")
        self._say(order, RUNNING)

    def _lapsed(self, order: Order) -> bool:
        """Goes on without the learner, if it is still silent, and sees to it that it and the other generators know."""
        reason = f"generator {self.rank} had no sign from the learner for {self.limit_s:g} s"
        if not self.line.change(self._known, self._known._replace(state=RUN, reason=reason)):
            return False
        self.handled, self._staged = order.number, None
        self._say(order, RUNNING)
        self.lost(f"no sign from the learner for {self.limit_s:g} s in a pause")
        return True
