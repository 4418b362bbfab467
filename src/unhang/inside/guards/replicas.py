"""Are the copies of a model still the same on all ranks? Bit for bit, every so many steps, beside the training."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from unhang.errors import RanksDiffer
from unhang.inside.guards import checksums, exchange
from unhang.inside.guards.comparing import (
    NOT_COMPARED,
    Cut,
    OverGroup,
    ThroughMemory,
    cannot_compare,
    layout_of,
    replicated,
    way_of,
)
from unhang.inside.guards.job import Job, here
from unhang.inside.guards.words import Duration, in_words, log, name_ranks, seconds_of, some_of

TAG = "replicas"
What = Literal["parameters", "buffers"]
# Comparisons that wait for ranks that lag behind; with more than these something else is wrong.
_MOST_WAITING = 8
_POLL_S = 0.0005
_MOST_NAMED = 4


class Difference(NamedTuple):
    """Replicas that are not equal."""

    step: int
    equal_step: int | None
    tensor: str
    more_tensors: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that differ from the majority; empty where there is none."""
        largest, total = self.groups[0], sum(len(group) for group in self.groups)
        return tuple(sorted(rank for group in self.groups[1:] for rank in group)) if 2 * len(largest) > total else ()

    def __str__(self) -> str:
        """One line: since when, the first tensor, and who differs from whom."""
        since = f"since step {self.step}"
        if self.equal_step is not None:
            since += f" (equal at step {self.equal_step})"
        more = f" and {self.more_tensors} more tensors" if self.more_tensors else ""
        if self.ranks:
            verb = "differs" if len(self.ranks) == 1 else "differ"
            who = f"{name_ranks(self.ranks)} {verb} from {name_ranks(self.groups[0])}"
        else:
            who = f"no majority: {'; '.join(name_ranks(group) for group in self.groups[:_MOST_NAMED])} differ"
        return f"replicas differ {since}: first in {self.tensor}{more}, {who}"


def check_replicas(
    model: Any,
    every: int = 100,
    what: Iterable[What] = ("parameters", "buffers"),
    optimizer: Any = None,
    on_differ: Literal["tell", "raise"] = "tell",
    limit_s: Duration = 30.0,
) -> Replicas:
    """Compares the replicas of a model on all ranks, bit for bit, after every `every`-th optimizer step.

    All ranks call it, once, at the same place. A comparison costs the checksums (`python -m unhang.inside.guards.checksums` prints
    what they cost here) and one exchange of 32 bytes that nobody waits for: the answer is read at a later step. Only where
    it says that something differs, two more exchanges find the first tensor and the ranks. Sharded tensors (FSDP, DTensor)
    are left out, and so are buffers that differ by nature; what was left out is said once.

    Example:
        ```python
        import torch
        import unhang

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with unhang.check_replicas(model, every=2) as replicas:
            for _ in range(4):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            assert replicas.check_now() is None  # now, and not only at every second step
        ```

    Args:
        model: a module; DDP or not.
        every: optimizer steps between comparisons.
        what: parameters, buffers or both.
        optimizer: whose steps count; by default the first one that steps and holds parameters of the model. Without
            optimizers of torch, call `step()` of the returned object.
        on_differ: "raise" has all ranks raise, one optimizer step after the one at which the replicas were found to differ.
        limit_s: for the ranks to come here, and to each comparison; one that comes later ends the comparisons, which is logged.

    Blocks: until all ranks have come, up to `limit_s`; later, only with "raise" or in `check_now()`, up to `limit_s`.

    Raises:
        ValueError: an argument makes no sense.
        RanksDiffer: with "raise", some ranks did not call it.
    """
    kinds = tuple(what)
    if every < 1 or not kinds or set(kinds) - {"parameters", "buffers"} or on_differ not in ("tell", "raise"):
        raise ValueError('every is at least 1, what of "parameters" and "buffers", on_differ "tell" or "raise"')
    replicas = Replicas(model, every, kinds, on_differ == "raise", seconds_of(limit_s))
    replicas._begin(optimizer)
    return replicas


class Replicas:
    """The comparison under way; made by `check_replicas`. Also a context manager that closes it."""

    def __init__(self, model: Any, every: int, what: Sequence[str], is_strict: bool, limit_s: float) -> None:
        self.steps = 0
        self.equal_step: int | None = None
        self.difference: Difference | None = None
        self._every, self._what, self._is_strict, self._limit_s = every, what, is_strict, limit_s
        # Not kept alive: torch holds the hook and so this object, and a DDP module that outlives its group can hang at the end.
        self._model = weakref.ref(model)
        self._job: Job | None = None
        self._way: ThroughMemory | OverGroup | None = None
        self._waiting: list[Cut[None]] = []
        self._question: Callable[[], bool] | None = None
        self._hook: Any = None
        self._counted: dict[int, bool] = {}
        self._first_counted: int | None = None
        self._news: Difference | None = None

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        """Closes; after an exception without waiting for the last answer."""
        if kind is not None:
            self._waiting.clear()
        self.close()

    def step(self) -> None:
        """One optimizer step is done. Called by torch's own optimizers; about 1 us where nothing is due.

        Raises:
            RanksDiffer: the replicas differ, and raising was asked for.
        """
        self.steps += 1
        if self._way is None or (self.steps % self._every and not self._waiting):
            return
        with self._guarded():
            if self._waiting:
                self._advance(self._limit_s if self._is_strict else 0.0)
            if self.steps % self._every == 0:
                self._ask()
        self._judge()

    def check_now(self) -> Difference | None:
        """Compares at this moment; all ranks call it at the same place. None: equal, or (which is logged) no answer.

        Blocks: until all ranks have answered, up to `limit_s`.

        Raises:
            RanksDiffer: the replicas differ, and raising was asked for.
        """
        if self._way is None:
            return None
        self._news = None
        with self._guarded():
            self._ask()
            if not self._advance(self._limit_s):
                log(TAG, f"not all ranks answered within {self._limit_s:g} s")
        found = self._news
        self._judge()
        return found

    def close(self) -> None:
        """Ends the comparisons, after the answer to the last one; blocks for that up to `limit_s`.

        Raises:
            RanksDiffer: the replicas differ, and raising was asked for.
        """
        with self._guarded():
            if self._waiting and self._way is not None:
                self._advance(self._limit_s)
        self._end()
        self._judge()

    def _begin(self, optimizer: Any) -> None:
        try:
            self._meet(optimizer)
        except Exception as error:
            self._end()
            if self._is_strict:
                raise
            log(TAG, f"not compared: {in_words(error)}")

    def _meet(self, optimizer: Any) -> None:
        mine = here()
        reason = "" if mine is None else cannot_compare(self._model(), mine.world_size)
        if mine is None or reason:
            log(TAG, f"not compared: {reason}") if reason else None
            return
        turn = mine.turn("replicas")
        exchange.gather(mine, f"replicas/{turn}", True, lambda _: None, self._limit_s, "check_replicas")
        import torch.optim.optimizer as optimizers

        self._job, self._way = mine, way_of(mine, f"replicas rows/{turn}", self._limit_s, "check_replicas")
        if optimizer is not None:
            self._hook = optimizer.register_step_post_hook(lambda *_: self.step())
        else:
            self._hook = optimizers.register_optimizer_step_post_hook(self._after_any_step)
        atexit.register(self._end)
        self._say_what_is_left_out()

    def _after_any_step(self, optimizer: Any, *_: Any) -> None:
        """Counts the steps of one optimizer: of a body's and a head's both would count the same step twice."""
        number = id(optimizer)
        if self._first_counted is None and number not in self._counted:
            model = self._model()
            ours = set() if model is None else {id(parameter) for parameter in model.parameters()}
            held = any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"])
            self._counted[number] = held
            self._first_counted = number if held else None
        if number == self._first_counted:
            self.step()

    def _say_what_is_left_out(self) -> None:
        compared, left_out = replicated(self._model(), self._what)
        if self._job is None or self._job.rank != 0:
            return
        for kind, names in left_out.items():
            log(TAG, f"not compared, {NOT_COMPARED[kind]}: {some_of(names, _MOST_NAMED)}")
        if not compared:
            log(TAG, "nothing is left to compare")

    def _ask(self) -> None:
        """Takes the checksums, and puts the comparison behind those that are still under way."""
        if len(self._waiting) >= _MOST_WAITING:
            raise RuntimeError(f"no answer to the last {_MOST_WAITING} comparisons")
        model = self._model()
        named = [] if model is None else replicated(model, self._what)[0]
        if named:
            self._waiting.append(self._compared(self.steps, [name for name, _ in named], [t for _, t in named]))
            # The first part takes the checksums, and must be done before the parameters change again.
            first = next(self._waiting[-1])
            if len(self._waiting) == 1:
                self._question = first
            self._advance(0.0)

    def _advance(self, limit_s: float) -> bool:
        """Goes on as far as the answers have come, in order; whether all are there. Blocks up to `limit_s`."""
        until = time.monotonic() + limit_s
        while self._waiting:
            if self._question is None or self._question():
                try:
                    self._question = next(self._waiting[0])
                except StopIteration:
                    self._waiting.pop(0)
                    self._question = None
            elif time.monotonic() >= until:
                return False
            else:
                time.sleep(_POLL_S)
        return True

    def _compared(self, step: int, names: Sequence[str], tensors: Sequence[Any]) -> Cut[None]:
        """One comparison, cut where it has to wait: each part asks whether to go on. The same parts on all ranks."""
        import torch

        way = self._way
        assert way is not None
        layout, is_there, sums = layout_of(names, tensors), *checksums.fetched(checksums.checksums(tensors))
        yield is_there
        total = int(checksums.total(sums))
        # The greatest number and the greatest complement, which is the complement of the smallest, in one exchange.
        head = torch.tensor([total, ~total, layout, ~layout])
        yield from way.greatest(head)
        most, least_, most_layout, least_layout_ = head.tolist()
        if most_layout != ~least_layout_:
            groups = [ranks for _, ranks in exchange.alike((yield from way.of_all(layout)))]
            raise _Unalike(f"the model is not built alike on all ranks: {'; '.join(map(name_ranks, groups))} differ")
        if most == ~least_:
            self.equal_step = step
            return
        both = torch.cat([sums, ~sums])
        yield from way.greatest(both)
        differing = (both[: len(names)] != ~both[len(names) :]).nonzero().flatten().tolist()
        groups = [ranks for _, ranks in exchange.alike((yield from way.of_all(int(sums[differing[0]]))))]
        # The first of those whose answers come together: that is since when.
        self._news = self._news or Difference(
            step, self.equal_step, names[differing[0]], len(differing) - 1, tuple(groups)
        )

    def _judge(self) -> None:
        """Logs what is new, on rank 0; raises where that was asked for."""
        news, self._news = self._news, None
        if news is None:
            return
        is_first, self.difference = self.difference is None, self.difference or news
        if is_first and self._job is not None and self._job.rank == 0:
            log(TAG, str(news))
        if self._is_strict:
            self._stop()
            raise RanksDiffer(str(news))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What fails in the body is logged, and ends the comparisons instead of the training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._stop()
            is_unalike = isinstance(error, _Unalike)
            if is_unalike and self._is_strict:
                raise RanksDiffer(str(error)) from None
            if not is_unalike or self._job is None or self._job.rank == 0:
                log(TAG, f"no more comparisons: {error if is_unalike else in_words(error)}")

    def _stop(self) -> None:
        """No more comparisons. The hook stays until the end: torch may be going through its hooks, and raise if one vanished."""
        self._waiting.clear()
        self._question = None
        way, self._way = self._way, None
        if way is not None:
            with suppress(Exception):
                way.end()

    def _end(self) -> None:
        atexit.unregister(self._end)
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
        self._stop()


class _Unalike(Exception):
    """The models have not the same tensors, so that there is nothing to compare."""
