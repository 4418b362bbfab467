"""What the ranks print of their own: in which words, with which numbers, and which of them said what the others did not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from unhang.model import LogLine
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_MOST_LINES, _MOST_CHARS, _MOST_RANKS, _LEAST_SAID = 4000, 300, 4096, 12
OF_LIBRARIES = lazy_pattern(
    r"\bNCCL (?:INFO|WARN|version)\b|ProcessGroup|c10d|TCPStore|[Ww]atchdog|torch/distributed|torch\.distributed|^\[Gloo\]"
    r"|Traceback \(|^ *File \"|^\s*(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Exit)\b|UserWarning|FutureWarning"
    r"|terminate called|^ *what\(\):|^frame #\d|^==> .* <==$|\bsrun: |slurmstepd|closing signal|exitcode"
)
# `[rank 3]`, `rank=3`, `R3 |`, `[gpu 1]`: a name that the program itself puts into its line.
_OWN = lazy_pattern(
    r"(?<![\w/.])(?:global[_ ])?[Rr](?:ank|ANK)[ _:=#-]{0,2}(\d{1,5})\b|[\[(|]\s*(?:[Rr]|gpu|GPU|[Pp]roc(?:ess)?|[Ww]orker|dev(?:ice)?|cuda)[ _:#-]?(\d{1,5})\s*[\])|/:]"
)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WHOLE = re.compile(r"\d{1,12}")


class OwnLine(NamedTuple):
    """One line of a program. `words`: it without numbers and ranks; `values`: its numbers, as printed. `order` counts all lines."""

    rank: int | None
    words: str
    values: tuple[str, ...]
    order: int
    line: LogLine

    @property
    def said(self) -> str:
        """What stands behind the name of the rank, where a program puts time, level and logger before it; else the whole line."""
        text = self.line.text.strip()
        own = _OWN.search(text[:_MOST_CHARS])
        behind = text[own.end() :].lstrip(" ])|:>-") if own else ""
        return behind if sum(c.isalpha() for c in behind) >= _LEAST_SAID else text


_known: WeakKeyDictionary[Situation, tuple[OwnLine, ...]] = WeakKeyDictionary()


def own_lines(s: Situation) -> tuple[OwnLine, ...]:
    """The lines of the program around the first wait that ran out, else the last ones of the log; not those of the libraries below it."""
    if s not in _known:
        _known[s] = tuple(_collect(s))
    return _known[s]


def before_the_wait(s: Situation) -> Sequence[OwnLine]:
    """Those that stand before the first line on a wait that ran out; of a rank whose watchdog speaks before what that rank itself says of it.

    Where the files of several ranks stand one behind the other, the first such line of all tells nothing of the others.
    """
    first = s.watchdogs.first
    if first is None:
        return own_lines(s)
    spoke: dict[int | None, int] = {}
    for event in s.events.of("watchdog."):
        if event.rank is not None:
            spoke.setdefault(event.rank, event.order)
    return [x for x in own_lines(s) if x.order < spoke.get(x.rank, first.order)]


def stamp_of(s: Situation, line: OwnLine) -> int | None:
    """When a line was printed, if it tells so itself: one without a stamp was given that of the line before it."""
    before = s.case.log[line.order - 1].time_ns if line.order else None
    return line.line.time_ns if line.line.time_ns != before else None


def by_rank(lines: Iterable[OwnLine]) -> Mapping[int, Sequence[OwnLine]]:
    """The lines of each rank that is told."""
    found: dict[int, list[OwnLine]] = {}
    for line in lines:
        if line.rank is not None:
            found.setdefault(line.rank, []).append(line)
    return found


def _collect(s: Situation) -> Iterator[OwnLine]:
    log, first = s.case.log, s.watchdogs.first
    middle = len(log) if first is None else first.order
    proofs = {e.order for e in s.events if e.says}
    for order in range(max(0, middle - _MOST_LINES), min(len(log), middle + _MOST_LINES)):
        line = log[order]
        text = line.text[:_MOST_CHARS]
        if order in proofs or not any(c.isalpha() for c in text) or OF_LIBRARIES.search(text):
            continue
        own = _OWN.search(text)
        told = int(own[1] or own[2]) if own else None
        rank = line.rank if line.rank is not None else told
        bare = text if own is None else text[: own.start()] + text[own.end() :]
        if rank is None or rank < _MOST_RANKS:
            yield OwnLine(rank, " ".join(_NUMBER.sub("#", bare).split()), tuple(_NUMBER.findall(bare)), order, line)
