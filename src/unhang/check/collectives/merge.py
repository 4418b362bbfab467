"""What all ranks said of each case, side by side, and whom that accuses. Pure: it needs neither torch nor processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from unhang.check.collectives.suite import CaseResult, Figures, State, splits
from unhang.errors import UnreadableInput
from unhang.model import grouped

# What a rank raises because another one has gone.
_PEER_IS_GONE = re.compile(
    r"connect|broken pipe|timed? ?out|socket|remote|network|unreachable|no route|aborted|\bpeer\b", re.IGNORECASE
)
# gloo ends the rank that receives more than it expects: the victim of whoever sent it.
_IS_VICTIM = re.compile(r"doesn't match expected size", re.IGNORECASE)
_WORST_FIRST = (State.DIED, State.HUNG, State.ERROR, State.WRONG, State.NOT_RUN, State.SKIPPED, State.OK, State.OUTSIDE)
# Only the root sees the result, so that the others have nothing to find wrong.
_CHECKED_BY_ROOT = ("reduce", "gather", "gather_object")
_STOPPING = (State.DIED, State.HUNG, State.ERROR)
SCHEMA = "unhang.collectives-reference/1"
_LEAST_RATIO = 1.5
_LEAST_MADS = 3.0
_LEAST_RANKS = 3


@dataclass(frozen=True, slots=True)
class CaseTable:
    """One case over all ranks.

    `verdict` is the worst state; a case that only some ranks refuse is an `error`. `suspects`: the ranks of which the evidence of
    this case alone says that one or all are at fault, () where it does not tell. `consequence_of`: the number of the earlier case
    because of which this one failed.
    """

    case: int
    name: str
    op: str
    group: str
    verdict: State
    states: dict[int, State]
    reasons: dict[int, str] = field(default_factory=dict)
    suspects: tuple[int, ...] = ()
    because: str = ""
    consequence_of: int | None = None

    @property
    def is_failure(self) -> bool:
        """Whether something is wrong here, and not only as a consequence."""
        return self.verdict in (*_STOPPING, State.WRONG) and self.consequence_of is None


@dataclass(frozen=True, slots=True)
class Blame:
    """The ranks at fault; () where the evidence does not suffice. `cases` are the numbers of those that show it."""

    ranks: tuple[int, ...]
    because: str
    cases: tuple[int, ...]


def merge(by_rank: Mapping[int, Sequence[CaseResult]], world_size: int) -> tuple[CaseTable, ...]:
    """The cases in their order. A rank without results has not reported at all."""
    longest = max(by_rank.values(), key=len, default=())
    tables: list[CaseTable] = []
    stopped_at: int | None = None
    for number, model in enumerate(longest):
        row = {rank: results[number] for rank, results in by_rank.items() if number < len(results)}
        table = _table(model, row, world_size, stopped_at)
        if stopped_at is None and table.verdict in _STOPPING:
            stopped_at = number
        tables.append(table)
    return tuple(tables)


def _table(model: CaseResult, row: Mapping[int, CaseResult], world_size: int, stopped_at: int | None) -> CaseTable:
    states = {rank: row[rank].state if rank in row else State.NOT_RUN for rank in range(world_size)}
    reasons = {rank: result.reason for rank, result in sorted(row.items()) if result.reason}
    reasons |= {rank: "this rank has reported nothing" for rank in range(world_size) if rank not in row}
    verdict = next(state for state in _WORST_FIRST if state in states.values())
    consequence_of = stopped_at if verdict in _STOPPING else None
    suspects, because = tuple[int, ...](), ""
    if consequence_of is not None:
        because = f"case {consequence_of} had failed before"
    elif verdict in _STOPPING:
        suspects, because = _who_stopped(row, world_size)
    elif verdict is State.WRONG:
        suspects, because = _who_was_wrong(row, world_size)
    elif verdict is State.SKIPPED and State.OK in states.values():
        verdict = State.ERROR
        suspects, because = _who_refused(states)
    about = model.case, model.name, model.op, model.group
    return CaseTable(*about, verdict, states, reasons, suspects, because, consequence_of)


def _ranks(found: Iterable[int]) -> str:
    listed = sorted(found)
    return f"rank {listed[0]}" if len(listed) == 1 else f"ranks {', '.join(map(str, listed))}"


def _who_stopped(row: Mapping[int, CaseResult], world_size: int) -> tuple[tuple[int, ...], str]:
    """Who keeps the others waiting. The surest evidence comes first.

    What fits every rank tells nothing. Of what may itself be the consequence of another rank's fault, that also holds when it
    fits more than half of them.
    """
    everyone = set(range(world_size))
    waiting = [set(result.waiting_for) for result in row.values() if result.waiting_for]
    hung = {rank for rank, result in row.items() if result.state is State.HUNG}
    issued = {rank: row[rank].stuck.issued for rank in hung if row[rank].stuck and row[rank].entered}  # type: ignore[union-attr]
    counts = {rank: count for rank, count in issued.items() if count is not None}
    behind = {rank for rank, count in counts.items() if count < max(counts.values())}
    died = {rank for rank, r in row.items() if r.state is State.DIED and not _IS_VICTIM.search(r.reason)}
    mute = {rank for rank in hung if row[rank].entered and row[rank].stuck is None}
    own_error = {rank for rank, r in row.items() if r.state is State.ERROR and not _PEER_IS_GONE.search(r.reason)}
    most, few = world_size - 1, world_size // 2
    candidates = (
        (set.intersection(*waiting) if waiting else set(), most, "did not come while the others waited"),
        (died, few, "died in it"),
        (everyone - row.keys(), most, "has reported nothing"),
        ({rank for rank in hung if not row[rank].entered}, most, "never entered it"),
        (own_error, few, "raised an error of its own"),
        (behind, few, "entered it, but torch has been given fewer collectives there than on the others"),
        (mute, few, "does not answer while the others do: its process is stopped or its interpreter is locked"),
    )
    for found, limit, what in candidates:
        if found and len(found) <= limit:
            return tuple(sorted(found)), f"{_ranks(found)} {what}"
    return (), "all ranks stand alike: the evidence does not tell who is at fault"


def _who_refused(states: Mapping[int, State]) -> tuple[tuple[int, ...], str]:
    refusing = [rank for rank, state in states.items() if state is State.SKIPPED]
    running = [rank for rank, state in states.items() if state is State.OK]
    because = f"torch refuses it on {_ranks(refusing)} only"
    fewer = min(refusing, running, key=len)
    return (tuple(fewer) if len(refusing) != len(running) else ()), because


def _who_was_wrong(row: Mapping[int, CaseResult], world_size: int) -> tuple[tuple[int, ...], str]:
    """The suspects of one case with wrong results: those of every group in which something was wrong, if there are any."""
    found = []
    for members in splits(world_size)[next(iter(row.values())).group]:
        wrong = {rank: row[rank] for rank in members if rank in row and row[rank].state is State.WRONG}
        right = [rank for rank in members if rank in row and row[rank].state is State.OK]
        if wrong:
            found.append(_suspects(members, wrong, right))
    common = set.intersection(*(set(ranks) for ranks, _ in found))
    if not common:
        return tuple(sorted(rank for ranks, _ in found for rank in ranks)), "wrong in several groups"
    return tuple(sorted(common)), found[0][1]


def _suspects(
    members: tuple[int, ...], wrong: Mapping[int, CaseResult], right: Sequence[int]
) -> tuple[tuple[int, ...], str]:
    details = [result.wrong for result in wrong.values() if result.wrong]
    for what in ("missing_rank", "doubled_rank"):
        named = {getattr(detail, what) for detail in details}
        if len(named) == 1 and None not in named:
            rank = named.pop()
            how = "is missing" if what == "missing_rank" else "is in it twice"
            return (rank,), f"the contribution of rank {rank} {how}"
    sources = {source for detail in details for source in detail.sources}
    receivers, others = set(wrong), set(members) - sources
    if len(sources) == 1 and len(others) >= 2 and receivers >= others:
        # A rank that spoils what it passes on would spoil the data of other ranks as well, or not reach all.
        return tuple(sources), f"what came from {_ranks(sources)} is wrong on all others"
    if len(receivers) == 1 and len(sources) == 1:
        suspects = receivers | sources
        return tuple(sorted(suspects)), f"wrong on the way from {_ranks(sources)} to {_ranks(receivers)}"
    is_checked_by_all = next(iter(wrong.values())).op not in _CHECKED_BY_ROOT
    if len(receivers) == 1 and len(members) >= 3 and len(right) == len(members) - 1 and is_checked_by_all:
        return tuple(receivers), f"wrong only on {_ranks(receivers)}"
    return members, f"wrong in the group of {_ranks(members)}"


def blame(tables: Sequence[CaseTable]) -> tuple[Blame, ...]:
    """Whom the failures accuse: at most one opinion on what stopped the suite, and one on the wrong results.

    A rank at fault is among the suspects of every wrong result, so one is named only when no other is. Several faults at
    once may leave nobody to name.
    """
    failures = [table for table in tables if table.is_failure]
    stopped = [Blame(t.suspects, f"{t.name}: {t.because}", (t.case,)) for t in failures if t.verdict in _STOPPING]
    wrong = [table for table in failures if table.verdict is State.WRONG]
    return (*stopped, *([_blame_for_wrong(wrong)] if wrong else []))


def _blame_for_wrong(wrong: Sequence[CaseTable]) -> Blame:
    numbers = tuple(table.case for table in wrong)
    common = set.intersection(*(set(table.suspects) for table in wrong))
    smallest = min(wrong, key=lambda table: len(table.suspects))
    if len(common) == 1:
        text = f"{_ranks(common)} and no other took part in each of {len(wrong)} wrong results"
        return Blame(tuple(common), f"{text}; {smallest.name}: {smallest.because}", numbers)
    text = f"{len(wrong)} cases have wrong results; the evidence does not tell which rank is at fault"
    return Blame((), f"{text} (suspects: {_ranks(common)})" if common else text, numbers)


@dataclass(frozen=True, slots=True)
class Reference:
    """The figures of one run by the name of the case, each the median over the ranks."""

    schema: str
    world_size: int
    figures: dict[str, Figures]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure beside its reference. `is_slower`: by more than 1.5 times and by more than three deviations of either."""

    name: str
    now_s: float
    before_s: float
    ratio: float
    is_slower: bool


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that computes slower than the others: even its good runs are 1.5 times their usual time."""

    rank: int
    median_s: float
    others_s: float
    ratio: float


def reference_of(by_rank: Mapping[int, Sequence[CaseResult]], world_size: int) -> Reference:
    """The figures of a run."""
    figures = grouped(
        (result.name, result.figures) for results in by_rank.values() for result in results if result.figures
    )
    return Reference(SCHEMA, world_size, {name: _middle(found) for name, found in figures.items()})


def _middle(found: Sequence[Figures]) -> Figures:
    speeds = [one.busbw_gbps for one in found if one.busbw_gbps is not None]
    return Figures(
        median(one.median_s for one in found), median(one.low_s for one in found), median(one.mad_s for one in found),
        min(one.repeats for one in found), median(speeds) if speeds else None,
    )  # fmt: skip


def save_reference(path: Path, reference: Reference) -> None:
    """Writes it as JSON.

    Raises:
        OSError: it cannot be written.
    """
    path.write_bytes(msgspec.json.format(msgspec.json.encode(reference)) + b"\n")


def load_reference(path: Path) -> Reference:
    """Reads what `save_reference` wrote.

    Raises:
        UnreadableInput: it is no such file.
    """
    try:
        reference = msgspec.json.decode(path.read_bytes(), type=Reference)
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInput(f"{path} is not a reference file of collectives: {error}") from error
    if reference.schema != SCHEMA:
        raise UnreadableInput(f"{path} has the schema {reference.schema!r}, not {SCHEMA!r}")
    return reference


def against(now: Reference, before: Reference) -> tuple[Ratio, ...]:
    """Every figure that both runs have.

    Raises:
        UnreadableInput: the runs had different numbers of ranks, so that nothing can be compared.
    """
    if now.world_size != before.world_size:
        raise UnreadableInput(f"the reference is of {before.world_size} ranks, this run of {now.world_size}")
    found = []
    for name in (name for name in now.figures if name in before.figures):
        new, old = now.figures[name], before.figures[name]
        ratio = new.median_s / old.median_s if old.median_s > 0 else float("inf")
        is_over_noise = new.median_s - old.median_s > _LEAST_MADS * max(new.mad_s, old.mad_s)
        found.append(Ratio(name, new.median_s, old.median_s, ratio, ratio > _LEAST_RATIO and is_over_noise))
    return tuple(found)


def slow_ranks(by_rank: Mapping[int, Sequence[CaseResult]]) -> tuple[SlowRank, ...]:
    """The ranks that compute slower than the others even at their fastest: one that had to share its processor is not slow.

    With fewer than three ranks nobody can be told apart.
    """
    speeds = {
        rank: result.figures
        for rank, results in by_rank.items()
        for result in results
        if result.op == "compute_speed" and result.figures
    }
    if len(speeds) < _LEAST_RANKS:
        return ()
    found = []
    for rank, mine in sorted(speeds.items()):
        others = [figures for other, figures in speeds.items() if other != rank]
        usual_s = median(figures.median_s for figures in others)
        noise_s = _LEAST_MADS * median(figures.mad_s for figures in others)
        if mine.low_s > _LEAST_RATIO * usual_s and mine.low_s - usual_s > noise_s:
            found.append(SlowRank(rank, mine.median_s, usual_s, mine.median_s / usual_s))
    return tuple(found)
