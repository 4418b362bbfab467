"""What learner and generators write to each other in a store, and the weights themselves where there is no group for them.

All decisions are changes of one key, the order, and each is made only if nobody else has changed it meanwhile: a learner
that comes back late finds that the generators have gone on, and no two generators go on with different weights.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from unhang.guard import checksums
from unhang.guard.board import connected, innermost

CHUNK_BYTES = 4 << 20
_ANSWER_LIMIT_S = 10.0
# No key holds this; expecting it changes nothing, and a store gives it back only where the key is missing.
_NOTHING = "a05c0bde6f9b4c0c8f5bb7b0d0c5a1de"

TAG = "weight_sync"
# What the learner orders, and what a generator says of itself.
PAUSE, SEND, RUN, STOP, OVER = "pause", "send", "run", "stop", "over"
PAUSED, RECEIVING, HAS, FAILED, RUNNING, GONE = "paused", "receiving", "has", "failed", "running", "gone"


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


def next_sign(order: Order) -> Order:
    """The same order, with a new sign of life."""
    return order._replace(sign=order.sign + 1)


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
