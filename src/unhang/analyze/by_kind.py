"""What is asked for by its kind: the events of all logs, what was read on the machines, and what the recorder noted of the program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Generic, TypeVar

from unhang.model import Case, Frame, LogEvent, Reading, grouped
from unhang.model.evidence import Value
from unhang.model.findings import name_ranks


def is_of_training(event: LogEvent) -> bool:
    """Whether a line tells how a job trains, and not that it hangs or has failed."""
    return event.kind.startswith("learn.") and not event.says


T = TypeVar("T", bound=LogEvent | Reading)


class _ByKind(Generic[T]):
    """All of them, in order. A kind may be given whole (`nccl.ecc`) or as a family (`nccl.`)."""

    def __init__(self, all_: Iterable[T]) -> None:
        self._all = tuple(all_)
        self._kinds = grouped((one.kind, one) for one in self._all)

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def _of(self, kinds: Sequence[str]) -> list[T]:
        """Those of these kinds, one kind after the other."""
        families = tuple(kind for kind in kinds if kind.endswith("."))
        return [
            one for kind, found in self._kinds.items() if kind in kinds or kind.startswith(families) for one in found
        ]


class Events(_ByKind[LogEvent]):
    """All events of a job's logs."""

    def of(self, *kinds: str) -> tuple[LogEvent, ...]:
        """The events of these kinds, in order."""
        return tuple(sorted(self._of(kinds), key=lambda e: e.order))

    def has(self, *kinds: str) -> bool:
        """Whether there is any of these kinds."""
        return bool(self.of(*kinds))

    def first(self, *kinds: str) -> LogEvent | None:
        """The first of these kinds."""
        return next(iter(self.of(*kinds)), None)

    def ranks(self, *kinds: str) -> tuple[int, ...]:
        """The ranks that events of these kinds are about, in ascending order."""
        return tuple(sorted({e.rank for e in self.of(*kinds) if e.rank is not None}))


class Readings(_ByKind[Reading]):
    """All readings of a job's machines."""

    def of(self, *kinds: str, subject: str | None = None) -> tuple[Reading, ...]:
        """The readings of these kinds, in the order in which they were taken."""
        return tuple(r for r in self._of(kinds) if subject is None or r.subject == subject)

    def first(self, *kinds: str, subject: str | None = None) -> Reading | None:
        """The first of these kinds."""
        return next(iter(self.of(*kinds, subject=subject)), None)

    def by_value(self, kind: str, subject: str, name: str) -> Mapping[Value, tuple[Reading, ...]]:
        """The readings of one thing by the value of a field, the most frequent value first; one key: all are equal."""
        found = grouped((reading[name], reading) for reading in self.of(kind, subject=subject))
        ordered = sorted(found.items(), key=lambda item: (-len(item[1]), str(item[0])))
        return {value: tuple(readings) for value, readings in ordered}


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_WITH_VALUE = frozenset({"-k", "--kill-after", "-s", "--signal"})
_JOB_END = "SLURM_JOB_END_TIME"

Place = tuple[str, int]


def facts_of(case: Case, kind: str) -> Iterator[Reading]:
    """The facts of a kind, rank by rank."""
    for rank in sorted(case.ranks):
        yield from (fact for fact in case.ranks[rank].facts if fact.kind == kind)


def place_of(fact: Reading) -> Place:
    """Where it was noted, to compare; ("", 0) where that is not known."""
    return (fact.at.file, fact.at.line) if fact.at else ("", 0)


def loaders(case: Case) -> Sequence[Mapping[int, Reading]]:
    """The loaders of the program: rank -> the first that it made at the line."""
    found: dict[Place, dict[int, Reading]] = {}
    for fact in facts_of(case, "program.loader"):
        if fact.rank is not None:
            found.setdefault(place_of(fact), {}).setdefault(fact.rank, fact)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a pass over a loader leaves out. `samples`: of `of` in the dataset; `why`: which part leaves out how many."""

    samples: int
    of: int
    why: tuple[str, ...]
    at: Frame | None


def left_out(case: Case) -> Iterator[LeftOut]:
    """Samples that no rank is given in one pass, loader by loader; only what is certain."""
    for by_rank in loaders(case):
        first = next(iter(by_rank.values()))
        total = int(first.number("base") or first.number("samples") or 0)
        parts = [*_by_sampler(first, total), *_by_hand(by_rank, case), *_by_batches(by_rank)]
        if parts and total:
            yield LeftOut(sum(n for n, _ in parts), total, tuple(f"{n} {why}" for n, why in parts), first.at)


def _by_sampler(fact: Reading, total: int) -> Iterator[tuple[int, str]]:
    """Of a sampler that shares a dataset out: it repeats the first samples, or drops the last."""
    of_rank, replicas = fact.number("of_rank"), fact.number("replicas")
    if of_rank and replicas and 0 < (rest := total - int(of_rank * replicas)) < replicas:
        yield rest, f"by {fact.text('sampler')}(drop_last=True)"


def _by_hand(by_rank: Mapping[int, Reading], case: Case) -> Iterator[tuple[int, str]]:
    """Of shares that lie one behind the other from the first sample on, `len // world` each: the rest is less than a sample a rank."""
    facts = sorted((f for f in by_rank.values() if f.number("base")), key=lambda f: f.number("first") or 0)
    if len(facts) < 2 or len(facts) != len(case.world) or len({f.number("base") for f in facts}) > 1:
        return
    begins = [0, *(int(f.number("last") or 0) + 1 for f in facts)]
    rest = int(facts[0].number("base") or 0) - begins[-1]
    if [int(f.number("first") or 0) for f in facts] == begins[:-1] and 0 < rest < len(facts):
        yield rest, "by shares of len // world"


def _by_batches(by_rank: Mapping[int, Reading]) -> Iterator[tuple[int, str]]:
    """Of a loader that gives out whole batches only."""
    rest = 0
    for fact in by_rank.values():
        given = [fact.number(name) for name in ("of_rank", "batches", "batch_size")]
        if fact["drop_last"] is True and all(n is not None for n in given):
            of_rank, batches, size = (int(n or 0) for n in given)
            rest += max(0, of_rank - batches * size)
    if rest:
        yield rest, f"by DataLoader(drop_last=True){f' of {len(by_rank)} ranks' if len(by_rank) > 1 else ''}"


def unlike_batches(case: Case) -> Iterator[tuple[Reading, Mapping[int, tuple[int, ...]]]]:
    """Loaders that hold unlike numbers of batches on the ranks, all of which have one at this line: number -> ranks."""
    for by_rank in loaders(case):
        known = ((fact.number("batches"), rank) for rank, fact in by_rank.items())
        counts = grouped((int(count), rank) for count, rank in known if count is not None)
        if len(counts) > 1 and sum(map(len, counts.values())) == len(case.world):
            yield next(iter(by_rank.values())), {n: tuple(ranks) for n, ranks in sorted(counts.items())}


def handed_out(case: Case) -> str:
    """`each rank got 512 samples`, `512 samples, 8,192 tokens (rank 0); 480 samples ... (rank 1)`; "" where no loader was seen."""
    by_amount = grouped(((e.samples, e.tokens), rank) for rank, e in sorted(case.ranks.items()) if e.samples)
    if not by_amount:
        return ""
    told = [f"{n:,} samples{f', {t:,} tokens' if t else ''}" for n, t in by_amount]
    if len(told) == 1:
        return f"each rank got {told[0]}" if len(case.ranks) > 1 else told[0]
    return "; ".join(f"{name_ranks(ranks, 4)}: {t}" for t, ranks in zip(told[:4], by_amount.values(), strict=False))


def launcher_limit(case: Case) -> tuple[str, float] | None:
    """What ends the job from outside, and after how many seconds: timeout(1) before the launcher, or the job's time under Slurm."""
    limits = []
    if (seconds := _of_timeout(case.job.command)) is not None:
        limits.append((f"timeout {seconds:g}", seconds))
    for evidence in case.ranks.values():
        end, started = evidence.identity.variables.get(_JOB_END, ""), evidence.identity.started_ns / 1e9
        if end.isdecimal() and started and int(end) > started:
            limits.append(("the rest of the Slurm job's time", float(int(end) - started)))
            break
    return min(limits, key=lambda limit: limit[1], default=None)


def _of_timeout(command: Sequence[str]) -> float | None:
    if not command or PurePath(command[0]).name != "timeout":
        return None
    at = 1
    while at < len(command) and command[at].startswith("-"):
        at += 2 if command[at] in _WITH_VALUE else 1
    found = _DURATION.fullmatch(command[at]) if at < len(command) else None
    return float(found[1]) * _UNITS[found[2]] if found and float(found[1]) else None
