"""The generator's side of a weight sync: from the order to pause until the order to go on, or until the learner is lost."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from unhang.errors import WeightSyncFailed
from unhang.guard import weight_store
from unhang.guard.telling import in_words, tell
from unhang.guard.weight_store import (
    FAILED,
    GONE,
    HAS,
    OVER,
    PAUSE,
    PAUSED,
    RECEIVING,
    RUN,
    RUNNING,
    SEND,
    STOP,
    TAG,
    Line,
    Order,
    Status,
)

_POLL_S = 0.005


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
        """Tells the learner that this generator is there."""
        self.line.put_status(self.rank, Status(self.handled, RUNNING, self.version))

    def leave(self) -> None:
        """Tells it not to wait for this one any more."""
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
        tell(TAG, f"generator {self.rank}: {why}; it goes on with version {self.version}")

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
        """Gets the new weights, beside those in use."""
        came = False
        try:
            plan = json.loads(self.line.get(f"plan/{order.number}"))
            room = weight_store.room_for(plan, self.device)
            if order.through_group:
                if self.group is None:
                    raise ValueError("the learner sends over a group, and this generator was given none")
                self._say(order, RECEIVING)
                came = True
                weight_store.broadcast(self.group, self.learner, room, self.limit_s, self._check_order)
            else:
                weight_store.read(self.line, order.number, room)
            if weight_store.checksum_of(room) != plan["checksum"]:
                raise ValueError("what arrived is not what was sent: the checksums differ")
        except LearnerLost:
            raise
        except Exception as error:  # noqa: BLE001 - the learner is told, and the old weights stay
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
            tell(TAG, f"generator {self.rank} goes on with version {self.version}: {order.reason}")
        elif order.committed > self.version:
            tell(TAG, f"generator {self.rank} missed version {order.committed}, and has {self.version}")
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
