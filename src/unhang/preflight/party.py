"""The ranks of a check, meeting in a store. Who does not come, or stops answering, is named; nobody waits for ever."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from unhang.preflight.member import Member

_PAUSE_S = 0.02
_SLOWEST_PAUSE_S = 0.25
_GRACE_S = 5.0  # the others wait this much longer than rank 0, which tells them who came


class CannotMeet(Exception):
    """The store cannot be reached, or not be opened."""


@dataclass
class Party:
    """The ranks that came. `absent`: rank -> why it is not there. Alone, there is no store, and all calls return at once."""

    member: Member
    store: Any = None
    present: tuple[int, ...] = (0,)
    absent: dict[int, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody else."""
        return self.store is None

    def collect(self, name: str, value: Any, limit_s: float) -> dict[int, Any]:
        """Every rank's value (of what JSON knows) on rank 0; elsewhere an empty dict. Blocks rank 0 up to `limit_s`.

        Who gives nothing within the limit is absent from then on.
        """
        if self.store is None:
            return {self.member.rank: value}
        try:
            return self._collected(name, value, limit_s)
        except RuntimeError as error:  # torch's errors of stores and sockets are RuntimeErrors
            self._lose(error)
            return {self.member.rank: value} if self.member.rank == 0 else {}

    def _collected(self, name: str, value: Any, limit_s: float) -> dict[int, Any]:
        self.store.set(f"{name}/{self.member.rank}", json.dumps(value))
        self.store.add(f"{name}/count", 1)
        if self.member.rank != 0:
            return {}
        waiting = len(self.present)
        self._until(lambda: self.store.add(f"{name}/count", 0) >= waiting, limit_s)
        found: dict[int, Any] = {}
        for rank in self.present:
            if self.store.check([f"{name}/{rank}"]):
                found[rank] = json.loads(self.store.get(f"{name}/{rank}"))
            else:
                self.absent[rank] = f"stopped answering: nothing from it within {limit_s:g} s ({name})"
        self.present = tuple(found)
        return found

    def share(self, name: str, value: Any, limit_s: float) -> Any:
        """Rank 0's value on every rank; None where rank 0 does not tell it. Blocks the others up to `limit_s`."""
        if self.store is None:
            return value
        try:
            return self._shared(name, value, limit_s)
        except RuntimeError as error:
            self._lose(error)
            return value if self.member.rank == 0 else None

    def _lose(self, error: RuntimeError) -> None:
        """The store has gone, and whoever held it."""
        if self.member.rank != 0:
            self.absent[0] = f"stopped answering: the store is gone ({_first_line(error)})"

    def _shared(self, name: str, value: Any, limit_s: float) -> Any:
        if self.member.rank == 0:
            self.store.set(name, json.dumps(value))
            return value
        if not self._until(lambda: self.store.check([name]), limit_s):
            self.absent[0] = f"stopped answering: nothing from it within {limit_s:g} s ({name})"
            return None
        return json.loads(self.store.get(name))

    def exchange(self, name: str, value: Any, limit_s: float) -> dict[int, Any]:
        """Every rank's value on every rank, without those who gave none. Blocks up to `limit_s` and a grace.

        Every rank that is present must call it, in the same order, each time with another name.
        """
        found = self.collect(name, value, limit_s)
        if self.store is None:
            return found
        told = self.share(f"{name}/all", {str(r): v for r, v in found.items()}, limit_s + _GRACE_S)
        if told is None:
            return {self.member.rank: value}
        everyone = {int(r): v for r, v in told.items()}
        self.present = tuple(r for r in self.present if r in everyone)
        return everyone

    def _until(self, is_true: Callable[[], bool], limit_s: float) -> bool:
        """Asks the store again and again, with growing pauses. Blocks up to `limit_s`."""
        deadline, pause = self.clock() + limit_s, _PAUSE_S
        while not is_true():
            if self.clock() >= deadline:
                return False
            self.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_PAUSE_S)
        return True


def meet(member: Member, limit_s: float, connect: Callable[[Member, float], Any] | None = None) -> Party:
    """Waits for the other ranks. Blocks up to `limit_s` and a grace.

    Raises:
        CannotMeet: the store cannot be reached within the limit, or rank 0 cannot open it.
    """
    if member.world_size == 1:
        return Party(member, None, (member.rank,))
    store = (connect or _connect)(member, limit_s)
    party = Party(member, store, tuple(range(member.world_size)))
    party.collect("here", member.host, limit_s)
    told = party.share("present", list(party.present), limit_s + _GRACE_S)
    if told is None:
        raise CannotMeet(
            f"{member.address}:{member.port} holds a store, but rank 0 did not answer within {limit_s:g} s"
        )
    came = tuple(map(int, told))
    for rank in range(member.world_size):
        if rank not in came:
            party.absent[rank] = f"never came: nothing from it within {limit_s:g} s"
    party.present = came
    return party


def _connect(member: Member, limit_s: float) -> Any:
    """The job's store: torchrun's agent holds it, or rank 0."""
    if not member.address or not member.port:
        raise CannotMeet("MASTER_ADDR and MASTER_PORT are not set: the ranks do not know where to meet")
    is_holder = member.rank == 0 and not member.agent_holds_store
    if not is_holder:
        _await_listener(member.address, member.port, limit_s)
    try:
        from torch.distributed import PrefixStore, TCPStore
    except ImportError as error:
        raise CannotMeet(f"torch cannot be imported, and the ranks meet in its store: {error}") from error
    try:
        store = TCPStore(
            member.address,
            member.port,
            is_master=is_holder,
            wait_for_workers=False,
            timeout=timedelta(seconds=max(1.0, limit_s)),
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise CannotMeet(f"the store cannot be {'opened' if is_holder else 'used'}: {_first_line(error)}") from error
    return PrefixStore(f"unhang-check/{member.run_id}", store)


def _await_listener(address: str, port: int, limit_s: float) -> None:
    """Waits until somebody listens there. torch's own client would print stacks of C++ and wait twice as long.

    Raises:
        CannotMeet: nobody does within the limit; with what the last attempt met.
    """
    deadline, pause_s = time.monotonic() + limit_s, _PAUSE_S
    while True:
        try:
            with socket.create_connection((address, port), timeout=max(0.1, deadline - time.monotonic())):
                return
        except OSError as error:
            if time.monotonic() + pause_s >= deadline:
                raise CannotMeet(f"{error.strerror or error} for {limit_s:g} s") from error
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _SLOWEST_PAUSE_S)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
