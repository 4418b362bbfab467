"""What the ranks print of their own: in which words, with which numbers, who alone said it, and which values of the training tell that something is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from unhang.model import LogLine, grouped
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
    r"(?<![\w/.])(?:global[_ ])?[Rr](?:ank|ANK)[ _:=#-]{0,3}(\d{1,5})\b|[\[(|]\s*(?:[Rr]|gpu|GPU|[Pp]roc(?:ess)?|[Ww]orker|dev(?:ice)?|cuda)[ _:#-]?(\d{1,5})\s*[\])|/:]"
)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


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
    named = [(x.rank, e.order) for x in s.watchdogs.timed_out for e in x.events]
    for rank, order in (*named, *((e.rank, e.order) for e in s.events.of("watchdog."))):
        if rank is not None:
            spoke[rank] = min(order, spoke.get(rank, order))
    return [x for x in own_lines(s) if x.order < spoke.get(x.rank, first.order)]


def stamp_of(s: Situation, line: OwnLine) -> int | None:
    """When a line was printed, if it tells so itself: one without a stamp was given that of the line before it."""
    before = s.case.log[line.order - 1].time_ns if line.order else None
    return line.line.time_ns if line.line.time_ns != before else None


def by_rank(lines: Iterable[OwnLine]) -> Mapping[int, Sequence[OwnLine]]:
    """The lines of each rank that is told."""
    return grouped((line.rank, line) for line in lines if line.rank is not None)


def by_words(of_ranks: Mapping[int, Sequence[OwnLine]]) -> Mapping[str, Mapping[int, Sequence[OwnLine]]]:
    """The lines of each rank by the words that they share with lines of others."""
    said = grouped((line.words, (rank, line)) for rank, lines in of_ranks.items() for line in lines)
    return {words: grouped(told) for words, told in said.items()}


def _collect(s: Situation) -> Iterator[OwnLine]:
    log, first = s.case.log, s.watchdogs.first
    middle = len(log) if first is None else first.order
    proofs = {e.order for e in s.events if e.says or e.kind.startswith("store.")}
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


_WORDS = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_OF_EVALUATION = lazy_pattern(r"\b(?:eval\w*|val|valid\w*|test)[\b_ :/-]", re.IGNORECASE)
_LOSS = lazy_pattern(r"\w*loss['\"]?\s*[:= ]\s*\d+\.\d", re.IGNORECASE)
_FINE = re.compile(r"\d+\.\d{3,}")  # so many digits are not the same twice by chance
_LEAST_EVALUATIONS = 3


def same_evaluations(s: Situation) -> list[LogLine]:
    """The lines of all evaluations of one kind, where each gives the same loss, to the last digit, and the training moved between them."""
    told: dict[str, list[tuple[int, LogLine, tuple[str, ...]]]] = {}
    for order, line in enumerate(s.case.log):
        text = line.text[:_MOST_CHARS]
        if _LOSS.search(text) and _OF_EVALUATION.search(text) and (values := tuple(_FINE.findall(text))):
            told.setdefault(_WORDS.sub("#", text), []).append((order, line, values))
    losses = [(e.order, e["loss"]) for e in s.events.of("learn.loss_finite")]
    for said in told.values():
        orders = {order for order, *_ in said}
        trained = {loss for order, loss in losses if said[0][0] < order < said[-1][0] and order not in orders}
        if len(said) >= _LEAST_EVALUATIONS and len({values for *_, values in said}) == 1 and len(trained) > len(said):
            return [line for _, line, _ in said]
    return []


_EMPTY_PASS = lazy_pattern(r"\b[Ee]poch\s*[\[#:=]?\s*(?P<epoch>\d{1,6})\b.{0,40}?\b(?P<rounds>\d+)it \[")


def empty_epochs(s: Situation) -> list[LogLine]:
    """The bars of all epochs, where there are several and none of them ever counted a round."""
    found: dict[str, LogLine] = {}
    for line in s.case.log:
        for match in _EMPTY_PASS.finditer(line.text[: _MOST_CHARS * 4]):
            if match["rounds"] != "0":
                return []
            found.setdefault(match["epoch"], line)
    return list(found.values()) if len(found) >= _LEAST_EVALUATIONS and not s.events.has("learn.loss_finite") else []
