"""New weights from a learner to its generators, such that nobody is left paused: not by an exception, and not by a death."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal

from unhang.errors import GroupInUse, WeightSyncFailed
from unhang.inside.guards import receiving as weight_store
from unhang.inside.guards.receiving import (
    FAILED,
    GONE,
    HAS,
    OVER,
    PAUSE,
    PAUSED,
    RECEIVING,
    RUN,
    SEND,
    STOP,
    TAG,
    Line,
    Order,
    Receiver,
    StoreLost,
)  # fmt: skip
from unhang.inside.guards.words import Duration, in_words, log, seconds_of

POLL_S = 0.01
# A sign of life so many times within the limit.
_SIGNS = 4
_LARGE_BYTES = 256 << 20


class Turn:
    """Who may use the group now. The same thread may take its turn again within itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        self._holder = ""
        self._since = 0.0
        self._owner = 0

    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._owner == threading.get_ident()

    @contextmanager
    def taken(self, what: str, wait_s: float = 0.0) -> Iterator[None]:
        """Holds the turn for the body. Blocks up to `wait_s`.

        Raises:
            GroupInUse: another thread holds it.
        """
        me = f"thread {threading.current_thread().name!r}"
        if not self._lock.acquire(timeout=wait_s) if wait_s > 0 else not self._lock.acquire(blocking=False):
            since_s = time.monotonic() - self._since
            raise GroupInUse(
                f"{me} wants to begin {what!r} with {self._name!r}, which {self._holder}, since {since_s:.1f} s; "
                "the two would reach the ranks in any order"
            )
        before = self._holder, self._since, self._owner
        self._owner = threading.get_ident()
        if not self._holder:
            self._holder, self._since = f"{me} uses for {what!r}", time.monotonic()
        try:
            yield
        finally:
            self._holder, self._since, self._owner = before
            self._lock.release()


class WeightSync:
    """Carries weights from a learner to generators, in versions.

    The learner publishes: the generators pause, get version and tensors, and go on, all with the new weights or all with
    the old ones. What the learner raises meanwhile resumes the generators, or stops them with the reason. A learner that
    gives no sign of life for `limit_s` is left: the generators go on with what they have. Nobody waits without a limit.

    Each generator asks between two of its own steps, with `take()`; it pauses there and nowhere else. Only one thread of a
    process may use the object at a time: a second one is refused, instead of meeting the others in another order.

    Example:
        ```python
        import torch
        import torch.distributed as dist
        import unhang

        model = torch.nn.Linear(4, 1)
        sync = unhang.WeightSync(learner=0, generators=[1], limit_s=30)
        if dist.get_rank() == 0:
            sync.publish(model)  # or: with sync.paused(): ...; sync.publish(gathered)
            sync.close()
        else:
            while not sync.is_over:
                weights = sync.take()  # None: nothing new
                if weights is not None:
                    model.load_state_dict(weights)
            assert sync.version == 1
        ```

    Args:
        learner: number of the learner; its rank, where there are ranks.
        generators: their numbers.
        rank: the number of this process; by default its rank in the default group.
        store: where all can be met; by default the default group's.
        group: of the learner and all generators, to send the tensors over. Without one they go through the store, which
            is made for small models: some 100 MB/s, and its host keeps a copy meanwhile. Give it a timeout of about
            `limit_s`: a process cannot end before what was begun in a gloo group has ended or timed out.
        device: where the generators receive; by default the CPU.
        name: of this exchange, where there are several.
        limit_s: for every wait for another process. What a learner does between pausing and publishing counts.
        on_error: what becomes of the generators where the learner raises: "resume" or "stop".
        on_lost: what a generator does without a learner: "keep" going on with the old weights, or "stop", which raises.

    Raises:
        ValueError: this process is neither of the two.
        WeightSyncFailed: the store cannot be reached.
    """

    def __init__(
        self,
        learner: int,
        generators: Sequence[int],
        *,
        rank: int | None = None,
        store: Any = None,
        group: Any = None,
        device: Any = "cpu",
        name: str = "weights",
        limit_s: Duration = 60.0,
        on_error: Literal["resume", "stop"] = "resume",
        on_lost: Literal["keep", "stop"] = "keep",
    ) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank() if rank is None else rank
        self.learner, self.generators = learner, tuple(generators)
        if learner in self.generators or self.rank not in (learner, *self.generators):
            raise ValueError(f"{self.rank} is to be either the learner {learner} or one of {list(generators)}")
        self._limit_s, self._group, self._stops_on_error = seconds_of(limit_s), group, on_error == "stop"
        self._turn = Turn(name)
        try:
            if store is None:
                # A launcher that restarts a job keeps its store.
                restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or "0"
                store, name = dist.distributed_c10d._get_default_store(), f"{name}/{restart}"
            self._line = Line(store, name)
            self._order = self._line.order()
            self._receiver: Receiver | None = None
            if not self.is_learner:
                stops = on_lost == "stop"
                self._receiver = Receiver(self.rank, learner, self._line, self._limit_s, group, device, stops)
                self._receiver.begin()
        except StoreLost as error:
            raise WeightSyncFailed(f"the store cannot be reached: {error}") from error
        self._published = self._order.committed
        self._is_closed = self._is_pausing = False
        self._keys: list[str] = []
        self._signed = self._asked = 0.0

    @property
    def is_learner(self) -> bool:
        """Whether this process publishes."""
        return self.rank == self.learner

    @property
    def version(self) -> int:
        """The last version that all generators got, on the learner; the version of its weights, on a generator; 0 for none."""
        return self._published if self._receiver is None else self._receiver.version

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come: closed, stopped, or the store is gone."""
        return self._is_closed or (self._receiver is not None and self._receiver.is_over)

    def turn(self, what: str, wait_s: float = 0.0) -> AbstractContextManager[None]:
        """Holds the object for what this thread does with the same group, such as a training step.

        Blocks: up to `wait_s`.

        Raises:
            GroupInUse: another thread holds it, for its own turn, a publish or a take.
        """
        return self._turn.taken(what, wait_s)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses all generators for the body, and has them go on whatever happens there. For the learner.

        Blocks: until the generators pause, up to `limit_s`; the body has `limit_s` to publish or to end.

        Raises:
            WeightSyncFailed: a generator did not pause; or they went on by themselves, because the body took too long.
            GroupInUse: another thread uses this.
        """
        if self._receiver is not None:
            raise WeightSyncFailed(f"{self.rank} is a generator; only the learner {self.learner} pauses")
        with self._turn.taken("weight sync"), self._as_failure():
            known = self._line.order()
            before, number = self._published, max(known.number, self._order.number) + 1
            order = Order(number, PAUSE, committed=known.committed, by=known.by)
            if not self._line.change(known, order):
                raise WeightSyncFailed("another process publishes under the same name")
            self._order, self._is_pausing, self._signed = order, True, time.monotonic()
            try:
                self._await(PAUSED, "pause")
                yield
                by = number if self._published > before else self._order.by
                self._change(self._order._replace(state=RUN, committed=self._published, by=by))
            except BaseException as error:
                self._published = before
                state = STOP if self._stops_on_error and not isinstance(error, WeightSyncFailed) else RUN
                with suppress(StoreLost, WeightSyncFailed):
                    self._change(self._order._replace(state=state, reason=in_words(error)))
                raise
            finally:
                self._is_pausing = False
                for key in self._keys:
                    self._line.delete(key)
                self._keys = []

    def publish(self, tensors: Any, version: int | None = None) -> int:
        """Gives all generators these tensors, and returns their version. For the learner.

        Within `paused()` the generators begin to use them at the end of the body; otherwise pausing is part of this call.

        Args:
            tensors: by name; or a module.
            version: greater than the last one; by default the next.

        Blocks: up to `limit_s` for the slowest generator to pause, to take a tensor, and to have all of them.

        Raises:
            WeightSyncFailed: somebody did not answer, and is named. The others go on with the old weights.
            GroupInUse: another thread uses this.
            ValueError: the version is not greater.
        """
        if not self._is_pausing or not self._turn.is_mine():
            with self.paused():
                return self.publish(tensors, version)
        version = self.version + 1 if version is None else version
        if version <= self.version:
            raise ValueError(f"version {version} does not follow {self.version}")
        named = _contiguous(tensors.state_dict() if hasattr(tensors, "state_dict") else tensors)
        with self._as_failure():
            try:
                self._send(named, version)
                self._await(HAS, f"take version {version}")
            except BaseException:
                self._leave_group()
                raise
        self._published = version
        return version

    def _send(self, tensors: Mapping[str, Any], version: int) -> None:
        self._sign()
        number = self._order.number
        self._keys.append(f"plan/{number}")
        self._line.put(self._keys[-1], json.dumps(weight_store.plan_of(tensors)))
        order = self._order._replace(state=SEND, version=version, through_group=self._group is not None)
        if self._group is None:
            if sum(t.numel() * t.element_size() for t in tensors.values()) > _LARGE_BYTES:
                log(TAG, "a large model goes through the store; give a group=, which is faster")
            self._keys += weight_store.write(self._line, number, tensors, self._sign)
            self._change(order)
            return
        self._change(order)
        try:
            weight_store.broadcast(self._group, self.learner, tensors, self._limit_s, self._sign)
        except (RuntimeError, TimeoutError) as error:
            text = f"the group broke while sending: {in_words(error)}{self._laggards()}"
            raise WeightSyncFailed(text) from error

    def _laggards(self) -> str:
        """Who keeps a transfer over the group from going on: rather those that have not begun to receive."""
        known, number = {g: self._line.status(g) for g in self.generators}, self._order.number
        missing = [g for g, s in known.items() if s.state != GONE and (s.order, s.state) != (number, HAS)]
        failed = [g for g in missing if known[g].order == number and known[g].state == FAILED]
        # One that had come, and gave up a moment before the learner did, only waited for others too.
        if refused := [g for g in failed if not known[g].came]:
            return f"; generator {refused[0]} could not take the weights: {known[refused[0]].text}"
        if absent := [g for g in missing if known[g].state != RECEIVING and g not in failed]:
            return f"; {self._in_words(absent)} did not come to receive"
        return f"; {self._in_words(missing)} did not receive all" if missing else ""

    def _leave_group(self) -> None:
        """What was begun in the group stays there, and would meet the next transfer."""
        if self._group is not None and self._order.state == SEND:
            self._group = None
            log(TAG, "the group is not used any more; from now on weights go through the store")

    def versions(self) -> dict[int, int]:
        """Which version each generator uses; 0 for none yet. For the learner."""
        with self._as_failure():
            return {generator: self._line.status(generator).version for generator in self.generators}

    def drop(self, generator: int) -> None:
        """Goes on without a generator that has died; weights go through the store from now on. For the learner."""
        self.generators = tuple(g for g in self.generators if g != generator)
        self._group = None

    def close(self) -> None:
        """The learner's lets the generators know that nothing more comes (`is_over`); a generator's, that it is not to be waited for."""
        self._is_closed = True
        with suppress(StoreLost):
            if self._receiver is not None:
                self._receiver.leave()
            else:
                known = self._line.order()
                self._line.change(known, known._replace(number=known.number + 1, state=OVER, reason=""))

    def take(self) -> dict[str, Any] | None:
        """The new weights, if there are any; else None at once, or after a pause that brought none. For a generator.

        Asks the store, at most every POLL_S seconds. If a pause is ordered, it begins and ends within this call.

        Blocks: without an order for a question to the store; in a pause until the learner gives no sign for `limit_s`.

        Raises:
            WeightSyncFailed: the learner stops the generators; or it is lost, and stopping then was asked for.
            GroupInUse: another thread uses this.
        """
        receiver = self._receiver
        if receiver is None:
            raise WeightSyncFailed(f"{self.rank} is the learner; only generators take")
        if self.is_over or time.monotonic() - self._asked < POLL_S:
            return None
        self._asked = time.monotonic()
        with self._turn.taken("take"):
            try:
                return receiver.take()
            except StoreLost as error:
                receiver.is_over = True
                receiver.lost(f"the store is gone ({error})")
                return None

    def _await(self, state: str, what: str) -> None:
        until = time.monotonic() + self._limit_s
        while missing := self._missing(state):
            self._sign()
            if time.monotonic() > until:
                raise WeightSyncFailed(f"{self._in_words(missing)} did not {what} within {self._limit_s:g} s")
            time.sleep(POLL_S)

    def _missing(self, state: str) -> list[int]:
        missing = []
        for generator in self.generators:
            status = self._line.status(generator)
            if status.state == FAILED and status.order == self._order.number:
                raise WeightSyncFailed(f"generator {generator} could not take the weights: {status.text}")
            if status.state != GONE and (status.order, status.state) != (self._order.number, state):
                missing.append(generator)
        return missing

    def _in_words(self, generators: Sequence[int]) -> str:
        never = [g for g in generators if not self._line.status(g).state]
        hint = f" ({', '.join(map(str, never))} never came)" if never else ""
        return f"generator{'' if len(generators) == 1 else 's'} {', '.join(map(str, generators))}{hint}"

    def _sign(self) -> None:
        """A sign of life now and then, while the learner's own call goes on."""
        if time.monotonic() - self._signed > self._limit_s / _SIGNS:
            self._change(self._order._replace(sign=self._order.sign + 1))

    def _change(self, order: Order) -> None:
        if not self._line.change(self._order, order):
            standing = self._line.order()
            raise WeightSyncFailed(
                f"the generators have gone on: {standing.reason or 'the order was changed by another process'}"
            )
        self._order, self._signed = order, time.monotonic()

    @contextmanager
    def _as_failure(self) -> Iterator[None]:
        try:
            yield
        except StoreLost as error:
            raise WeightSyncFailed(f"the store is gone: {error}") from error


def _contiguous(tensors: Mapping[str, Any]) -> dict[str, Any]:
    sharded = [name for name, tensor in tensors.items() if hasattr(tensor, "placements")]
    if sharded:
        raise ValueError(f"{sharded[0]} is sharded; all ranks gather it with full_tensor() first")
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items() if hasattr(tensor, "detach")}
