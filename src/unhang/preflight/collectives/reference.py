"""The figures of a run beside those of an earlier one, and of the ranks beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from unhang.errors import UnreadableInput
from unhang.preflight.collectives.results import CaseResult, Figures

SCHEMA = "unhang.collectives-reference/1"
_LEAST_RATIO = 1.5
_LEAST_MADS = 3.0
_LEAST_RANKS = 3


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
    figures: dict[str, list[Figures]] = {}
    for results in by_rank.values():
        for result in results:
            if result.figures:
                figures.setdefault(result.name, []).append(result.figures)
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
        raise UnreadableInput(f"{path} is no reference of collectives: {error}") from error
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
    return tuple(
        _ratio(name, figures, before.figures[name]) for name, figures in now.figures.items() if name in before.figures
    )


def _ratio(name: str, now: Figures, before: Figures) -> Ratio:
    ratio = now.median_s / before.median_s if before.median_s > 0 else float("inf")
    noise_s = _LEAST_MADS * max(now.mad_s, before.mad_s)
    is_slower = ratio > _LEAST_RATIO and now.median_s - before.median_s > noise_s
    return Ratio(name, now.median_s, before.median_s, ratio, is_slower)


def slow_ranks(by_rank: Mapping[int, Sequence[CaseResult]]) -> tuple[SlowRank, ...]:
    """The ranks whose `compute_speed` is below that of the others. With fewer than three ranks nobody can be told apart."""
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
