"""`for batch in unhang.align(loader):` ranks with fewer batches do not leave the others waiting."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Generic, Literal, TypeVar

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards import exchange
from unhang.inside.guards.board import peer_failed
from unhang.inside.guards.job import Job, here
from unhang.inside.guards.shared_memory import InStep, SharedRow
from unhang.inside.guards.words import Duration, have, in_words, log, seconds_of, traceback_of

T = TypeVar("T")
Mode = Literal["raise", "stop_together", "warn"]
_MODES = ("raise", "stop_together", "warn")
_TAG = "train_setup"
# A rank's word on the batch that it looked for.
_HAS, _ENDED, _FAILED = 1, 0, -1
_CODE, _LENGTH = 3, 4
_ADVICE = "use drop_last=True or a sampler that pads, or unhang.align(loader, mode='stop_together')"


class Aligned(Generic[T]):
    """A loader whose epochs end for all ranks together; made by `align`. Other attributes are those of the loader."""

    def __init__(self, loader: Iterable[T], mode: Mode, name: str, limit_s: float | None) -> None:
        self._loader, self._mode, self._limit_s = loader, mode, limit_s
        self._name = f"align({name!r}, mode={mode!r})" if name else f"align(mode={mode!r})"
        self._epoch = 0
        self._is_off = False
        self._left: tuple[int, Any] | None = None
        self._logged = ""

    def __iter__(self) -> Iterator[T]:
        mine = here()
        self._epoch += 1
        if mine is None:
            return iter(self._loader)
        return chain.from_iterable(_Epoch(self, mine, self._epoch).stretches())

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # half made, by copy or pickle
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Epoch(Iterator[T]):
    """One epoch of one rank. While a step works on batch i, all ranks exchange whether they have batch i + 1."""

    def __init__(self, owner: Aligned[T], mine: Job, epoch: int) -> None:
        self._owner, self._job, self._epoch = owner, mine, epoch
        self._keeps_left = inspect.isgenerator(owner._loader)
        self._batches: Iterator[T] | None = None
        self._guard = exchange.number_of(mine, "epoch", owner._name)
        self._limit_s = owner._limit_s or mine.timeout_s
        self._index = 0
        self._ahead: tuple[int, Any] = (_ENDED, None)
        # The exchange of the batch in hand: a row in shared memory, or, where that takes more, an exchange.
        self._row: SharedRow | None = None
        self._asked: exchange.Exchange | None = None
        self._is_answered = False
        self._is_free, self._is_over = owner._is_off, False
        self._lengths: list[int] = []

    def stretches(self) -> Iterator[Iterable[T]]:
        """The batches, in stretches: where the ranks share memory and are in step, on a short way."""
        for batch in self:
            held = [batch]
            del batch
            # Each batch is given away: a training that lets it go gets its memory back.
            yield map(list.pop, (held,))
            if self._row is not None and self._batches is not None and self._ahead[0] == _HAS and not self._keeps_left:
                in_step = InStep[T](self._row)
                held, self._ahead = [self._ahead[1]], (_ENDED, None)
                # What ends it otherwise, such as Ctrl-C, ends the epoch.
                self._is_over = True
                yield in_step.items(
                    held, self._batches, partial(self._fell_out, in_step), partial(self._go_on, in_step)
                )

    def _fell_out(self, in_step: InStep[T], item: T) -> None:
        """It is to be learnt whether all have this batch."""
        self._index, self._row, self._ahead, self._is_over = in_step.position, in_step.in_hand(), (_HAS, item), False

    def _go_on(self, in_step: InStep[T], found: T | Exception) -> None:
        """All have the batch that comes now; the others are to learn of the one behind it."""
        self._index, self._is_over = in_step.position + 1, False
        self._ahead = self._failed(found) if isinstance(found, Exception) else (_HAS, found)
        self._send_row(exchange.UNKNOWN)

    def __next__(self) -> T:
        if self._is_over:
            raise StopIteration
        try:
            self._agree()
        except (RanksDiffer, PeerFailed) as error:
            self._raise_or_log(error)
        code, batch = self._ahead
        if code != _HAS or self._is_over:
            self._end()
            raise batch if code == _FAILED else StopIteration
        self._index += 1
        self._look_ahead()
        return batch  # type: ignore[no-any-return]

    def _agree(self) -> None:
        """Learns whether all ranks have the batch in hand."""
        if self._index == 0:
            self._look_ahead()
        self._is_answered = False
        asked = self._asked if self._row is None else exchange.SharedExchange(self._job, self._row)
        if asked is not None:
            asked.wait(self._limit_s, self)
            self._is_answered = True
            if not asked.is_alike():
                self._judge(asked)
            asked.free()

    def _look_ahead(self) -> None:
        length = exchange.UNKNOWN
        if self._index == 0 or self._keeps_left:
            length = self._fetch_first_or_kept()
        else:
            try:
                self._ahead = _HAS, next(self._batches)  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001 - raised again, in its place, after the others know
                self._ahead = self._failed(error)
        self._send_row(length)

    def _send_row(self, length: int) -> None:
        if self._is_free:
            return
        row, shared = (self._guard, self._epoch, self._index, self._ahead[0], length), self._job.shared
        if shared is not None and shared.begun < shared.room_until:
            self._row = shared.begin(row)
            return
        self._row, self._is_answered = None, False
        try:
            self._asked = exchange.start(self._job, row, self._limit_s, self)
        except (RanksDiffer, PeerFailed) as error:
            self._raise_or_log(error)

    def _fetch_first_or_kept(self) -> int:
        """Fetches the first batch, or one that goes back after a `break`; returns the length that is compared at the first."""
        is_first = self._index == 0
        left = self._owner._left if is_first else None
        length = _length(self._owner._loader) if is_first else exchange.UNKNOWN
        if left is None:
            try:
                if self._batches is None:
                    self._batches = iter(self._owner._loader)
                left = _HAS, next(self._batches)
            except Exception as error:  # noqa: BLE001 - as in `_look_ahead`
                left = self._failed(error)
        self._ahead = left
        if self._keeps_left:
            self._owner._left = left if left[0] == _HAS else None
        return length

    def _failed(self, error: Exception) -> tuple[int, Any]:
        """What stands in the place of a batch; an error is reported to the others."""
        if isinstance(error, StopIteration):
            return _ENDED, None
        self._report_failure(error)
        return _FAILED, error

    def _raise_or_log(self, error: RanksDiffer | PeerFailed) -> None:
        """What was found is raised, and ends the epoch; in mode warn it is logged, and this epoch goes on unguarded.

        So do all later ones where not all ranks got the same answer: their exchanges do not belong together any more.
        """
        self._owner._is_off = self._owner._is_off or not self._is_answered
        if self._owner._mode != "warn":
            self._end()
            raise error
        until = "from now on" if self._owner._is_off else "in this epoch"
        log(_TAG, f"{self._owner._name}: {error}; it goes on, and {until} does not look at the other ranks")
        self._is_free, self._asked, self._row = True, None, None

    def _report_failure(self, error: Exception) -> None:
        if self._job.board is not None and not self._is_free:
            failure = {"what": in_words(error), "text": traceback_of(error)}
            with suppress(Exception):
                self._job.board.put(f"loader/{self._job.rank}", {"rank": self._job.rank, **failure})

    def __str__(self) -> str:
        return f"batch {self._index + 1} of epoch {self._epoch} of {self._owner._name}"

    def _judge(self, asked: exchange.Exchange) -> None:
        """Not all ranks sent the same word.

        Raises:
            RanksDiffer: they are at different places, or some have no such batch where that is an error.
            PeerFailed: the loader of another rank raised.
        """
        apart = asked.places()
        if apart:
            self._is_answered = False
            raise RanksDiffer(f"{apart} (a rank left its loop alone, or went through the loader more often)")
        rows = asked.rows()
        if self._index == 0:
            self._lengths = [row[_LENGTH] for row in rows]
        codes = [row[_CODE] for row in rows]
        failed = [rank for rank, code in enumerate(codes) if code == _FAILED]
        if failed and self._job.rank not in failed:
            raise self._failed_there(failed[0])
        if failed:
            return  # our own exception comes next
        if self._owner._mode == "stop_together":
            if _ENDED in codes:
                self._stop(codes)
        elif len(set(codes)) > 1 or (self._index == 0 and len({n for n in self._lengths if n >= 0}) > 1):
            raise RanksDiffer(f"{self._counts(codes)}; {_ADVICE}")

    def _failed_there(self, rank: int) -> PeerFailed:
        found: dict[str, Any] = {"rank": rank, "what": "its loader raised an exception"}
        if self._job.board is not None:
            with suppress(Exception):
                found = self._job.board.get(f"loader/{rank}")
        found["what"] = f"in its loader, at {self}: {found['what']}"
        return peer_failed(found)

    def _stop(self, codes: Sequence[int]) -> None:
        """Ends the epoch here on all ranks; rank 0 says, once, what is left unused."""
        self._is_over = True
        lengths = [n for code, n in zip(codes, self._known_lengths(), strict=True) if code == _HAS]
        at_least = "at least " if any(n <= self._index for n in lengths) else ""
        unused = sum(max(n - self._index, 1) for n in lengths)
        text = f"{self._owner._name}: the epoch ends for all ranks after {_batches(self._index)}, {at_least}{unused} left unused"
        if self._job.rank == 0 and text != self._owner._logged:
            log(_TAG, f"{text}; {self._counts(codes)}")
        self._owner._logged = text

    def _known_lengths(self) -> list[int]:
        """By rank; at the first exchange, or where all were equal, they are those of this rank."""
        return self._lengths or [_length(self._owner._loader)] * self._job.world_size

    def _counts(self, codes: Sequence[int]) -> str:
        """`rank 1 has 12 batches; ranks 0, 2, 3 have 13 or more, 13 by len()`, the smallest first."""
        groups: dict[tuple[int, int], list[int]] = {}
        for rank, (code, length) in enumerate(zip(codes, self._known_lengths(), strict=True)):
            groups.setdefault((code, length), []).append(rank)
        parts = []
        for (code, length), ranks in sorted(groups.items()):
            by_len = "" if length < 0 else f" ({length} by len())"
            count = f"{self._index + 1} or more batches" if code == _HAS else _batches(self._index)
            if self._index == 0 and code == _HAS and length >= 0:
                count, by_len = _batches(length), ""
            parts.append(f"{have(ranks)} {count}{by_len}")
        return "; ".join(parts)

    def _end(self) -> None:
        self._is_over = True
        self._batches, self._ahead = None, (_ENDED, None)


def _batches(count: int) -> str:
    return f"{count} batch{'' if count == 1 else 'es'}"


def _length(loader: object) -> int:
    """By `len()`, or UNKNOWN: an iterable data set only guesses, and warns later if the guess was asked for."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(getattr(loader, "dataset", None), data.IterableDataset):
        return exchange.UNKNOWN
    try:
        return len(loader)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - whatever it is, there is no length
        return exchange.UNKNOWN


def align(loader: Iterable[T], mode: Mode = "raise", name: str = "", *, limit_s: Duration | None = None) -> Aligned[T]:
    """Wraps a loader, or any iterable, so that no rank trains a step for which another has no batch.

    While a step works on one batch, the ranks exchange in the background whether each has a next one. For that, one batch is
    fetched ahead: after a `break` it is dropped (a generator gets it back in the next epoch). The first batch of an epoch
    waits until all ranks have theirs. A `break` has to come in all ranks; one rank's own is found, and named, when it comes
    to the next epoch. An exception of one rank's loader reaches all ranks in the place of its batch.

    Wrap the same loaders on all ranks, and go through them in the same order. It does not help against a loader that stands
    still: the others wait for that rank's step, as ever. Where one process trains alone, nothing is done.

    Example:
        import torch
        import unhang

        data = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2)
        loader = unhang.align(data, mode="stop_together", name="train")
        steps = 0
        for epoch in range(2):
            for batch in loader:
                steps += 1
        assert steps == 8

    Blocks: at the first batch of an epoch, and where a rank is late, up to `limit_s`.

    Args:
        loader: its length is compared at the first batch, where `len()` knows it.
        mode: what to do where ranks have different numbers of batches. "raise": RanksDiffer on all ranks, before the step
            that would hang (at the first batch where the lengths are known). "stop_together": all end the epoch where the
            shortest ends, and rank 0 says what is left unused. "warn": say it, and go on.
        name: for messages; give one where there are several loaders.
        limit_s: for the other ranks to come to the same batch; by default the timeout of the job.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(_MODES)}")
    return Aligned(loader, mode, name, None if limit_s is None else seconds_of(limit_s))
