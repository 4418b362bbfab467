"""How a verdict compares with the truth, and what the counts allow one to say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HIT, WRONG_LINE, WRONG_OUTCOME, UNDECIDED, FALSE_ACCUSATION = (
    "hit", "wrong line", "wrong outcome", "undecided", "false accusation",
)  # fmt: skip
NOT_RUN = "the fault did not happen"
_HUNG_JOB_ENDED = 124


@dataclass(frozen=True)
class Truth:
    """What is right to say about a run.

    `lines`: file name and number; any of them is right. `line_rule`: required, optional (none is right too), any (not judged).
    `is_any_rank`: one or more of `ranks`, by chance.
    """

    outcomes: tuple[str, ...]
    causes: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    lines: frozenset[tuple[str, int]] = frozenset()
    line_rule: str = "required"
    is_any_rank: bool = False


@dataclass(frozen=True)
class Said:
    """What a tool said about a run: its first answer."""

    outcome: str = ""
    cause: str = ""
    ranks: frozenset[int] = frozenset()
    line: tuple[str, int] | None = None
    title: str = ""
    rule: str = ""
    confidence: float = 0.0


@dataclass(frozen=True)
class Score:
    """Which parts of an answer are right, and what that makes of it."""

    result: str
    outcome: bool = False
    cause: bool = False
    ranks: bool = False
    line: bool = False


def said_in(report: Mapping[str, Any]) -> Said:
    """The first finding of a `report.json`."""
    findings = report.get("findings") or []
    if not findings:
        return Said(str(report.get("outcome", "")))
    first = findings[0]
    where = first.get("location")
    return Said(
        str(report.get("outcome", "")),
        str(first["cause"]),
        frozenset(first["culprit_ranks"]),
        (Path(where["file"]).name, int(where["line"])) if where else None,
        str(first.get("title", "")),
        str(first.get("rule", "")),
        float(first.get("confidence", 0)),
    )


def score_fault(truth: Truth, said: Said, exit_code: int | None = None) -> Score:
    """Judges an answer about a run with a fault. `exit_code`: of `unhang run`; what it says must fit how the job ended."""
    outcome = said.outcome in truth.outcomes and _fits(said.outcome, exit_code)
    cause, ranks, line = said.cause in truth.causes, _right_ranks(truth, said.ranks), _right_line(truth, said.line)
    parts = {"outcome": outcome, "cause": cause, "ranks": ranks, "line": line}
    if all(parts.values()):
        return Score(HIT, **parts)
    if not said.cause or said.cause == "unknown":
        return Score(UNDECIDED, **{**parts, "line": False, "ranks": False})
    if not cause or said.ranks - truth.ranks:
        return Score(FALSE_ACCUSATION, **parts)
    if not ranks:
        return Score(UNDECIDED, **parts)
    return Score(WRONG_OUTCOME if not outcome else WRONG_LINE, **parts)


def score_healthy(said: Said) -> Score:
    """A healthy run must be called clean, without a finding."""
    if said.cause:
        return Score(FALSE_ACCUSATION)
    is_clean = said.outcome == "clean"
    return Score(HIT if is_clean else WRONG_OUTCOME, is_clean, True, True, True)


def _fits(outcome: str, exit_code: int | None) -> bool:
    if exit_code is None:
        return True
    if outcome == "hang":
        return exit_code == _HUNG_JOB_ENDED
    return (exit_code not in (0, _HUNG_JOB_ENDED)) if outcome == "crash" else exit_code == 0


def _right_ranks(truth: Truth, ranks: frozenset[int]) -> bool:
    return (bool(ranks) and ranks <= truth.ranks) if truth.is_any_rank else ranks == truth.ranks


def _right_line(truth: Truth, line: tuple[str, int] | None) -> bool:
    if truth.line_rule == "any":
        return True
    return truth.line_rule == "optional" if line is None else line in truth.lines


def wilson(hits: int, of: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share. Source: Wilson, JASA 22 (1927) 209."""
    if of <= 0:
        return 0.0, 1.0
    share, square = hits / of, z * z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == of else middle + half)


def share(hits: int, of: int) -> str:
    """`118 of 120, 98.3 % (94.1 to 99.5)`."""
    low, high = wilson(hits, of)
    return f"{hits} of {of}, {hits / max(1, of):.1%} ({100 * low:.1f} to {100 * high:.1f})".replace("%", " %")
