"""Several runs: their verdicts as a list, a line for each; two of them side by side, the answer first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from unhang.diagnosis import verdict_on
from unhang.errors import UnhangError
from unhang.model import Case, Diagnosis, Outcome, ProcessGroup, WaitsFor
from unhang.model.findings import fold_ranks, name_ranks
from unhang.read import Opened, ReadDumps
from unhang.read.gathered import Progress
from unhang.read.runs import Job, began_ns
from unhang.show.paper import Paper, duration, text_width
from unhang.show.verdict import encoded, headline

if TYPE_CHECKING:
    from unhang.analyze.calls.compare import Comparison, GroupChange, OpUse, StepTime
    from unhang.analyze.calls.schedule import Divergence

LIST_SCHEMA = "unhang.runs/1"
COMPARISON_SCHEMA = "unhang.comparison/1"
_STYLE = {Outcome.HANG: "bad", Outcome.CRASH: "bad", Outcome.CLEAN: "good"}
_MOST = 12


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, of which each node may have left a report of its own. `reason`: why there is no verdict."""

    paths: tuple[str, ...]
    started_ns: int
    diagnosis: Diagnosis | None = None
    reason: str = ""

    @property
    def headline(self) -> str:
        """The answer, or why there is none."""
        return headline(self.diagnosis, Case(), WaitsFor()) if self.diagnosis else self.reason

    @property
    def outcome(self) -> Outcome:
        """What became of it."""
        return self.diagnosis.outcome if self.diagnosis else Outcome.UNKNOWN


def listed(job: Job, given: Opened, read_dumps: ReadDumps, on_progress: Progress | None = None) -> ListedRun:
    """A run with its verdict, or with the reason why there is none."""
    diagnosis, reason = None, ""
    try:
        diagnosis = verdict_on(job, read_dumps, on_progress)
    except UnhangError as error:
        reason = given.shown(str(error))
    return ListedRun(tuple(given.shown(str(run.path)) for run in job), began_ns(job), diagnosis, reason)


def exit_code_of(runs: Sequence[ListedRun]) -> int:
    """1 if there are findings on any, else 3 if any could not be judged, else 0."""
    codes = {run.diagnosis.exit_code if run.diagnosis else 3 for run in runs}
    return 1 if 1 in codes else max(codes, default=0)


def render_run_list(runs: Sequence[ListedRun], color: bool = False, terminal: int = 0) -> str:
    """A line for each, without a final newline; the answer comes last, below it where a terminal of so many columns is too narrow."""
    paper = Paper(color, terminal)
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_ns / 1e9)),
            (run.diagnosis.word if run.diagnosis else run.outcome.value).upper(),
            _ended(run),
            " ".join(run.paths),
        )
        for run in runs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for run, row in zip(runs, rows, strict=True):
        began, outcome, *rest = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        style = _STYLE.get(run.outcome, "warn")
        head = f"{began}  ", (outcome, style), "  ", "  ".join(rest)
        if terminal and len(f"{began}  {outcome}  {'  '.join(rest)}  {run.headline}") > terminal:
            paper.line(*head)
            paper.prose(run.headline, indent=4)
        else:
            paper.line(*head, "  ", run.headline)
    return str(paper).rstrip()


def _ended(run: ListedRun) -> str:
    code = run.diagnosis.job.exit_code if run.diagnosis else None
    return "" if code is None else f"exit {code}"


def run_list_json(runs: Sequence[ListedRun]) -> bytes:
    """The list as UTF-8 JSON without a final newline. `exit_code` is the job's."""
    return encoded({"schema": LIST_SCHEMA, "runs": [_fields(run) for run in runs]})


def _fields(run: ListedRun) -> dict[str, object]:
    found = run.diagnosis
    first = found and found.first
    return {
        "paths": run.paths,
        "started": datetime.fromtimestamp(run.started_ns / 1e9, UTC).isoformat(timespec="seconds"),
        "outcome": run.outcome.value,
        "headline": run.headline,
        "cause": first and first.cause,
        "confidence": first and first.confidence,
        "culprit_ranks": first.culprit_ranks if first else (),
        "exit_code": found and found.job.exit_code,
        "command": found.job.command if found else (),
    }


# Two runs side by side.


def _answer(found: Comparison) -> str:
    if not all(found.calls):
        which = "both runs have" if not any(found.calls) else "this run has" if found.calls[1] else "the other run has"
        return f"{which} no recorded calls"
    if found.divergences:
        return _divergence(found.divergences[0])
    if found.groups:
        return f"the process groups differ: {_group(found.groups[0])}"
    if found.sizes:
        first = found.sizes[0]
        return f"{first.op} of {first.desc} differs in size: {_values(first.ours)} against {_values(first.theirs)}"
    if found.world[0] != found.world[1]:
        return f"{found.world[0]} ranks against {found.world[1]}"
    if found.our_ranks_only or found.their_ranks_only:
        where = "in this run" if found.our_ranks_only else "in the other run"
        return f"{name_ranks(found.our_ranks_only or found.their_ranks_only)} only {where}"
    if found.software:
        first_pair = found.software[0]
        return f"{first_pair.what}: {first_pair.ours} against {first_pair.theirs}"
    if not found.compared:
        return "the runs recorded no stretch in common"
    return "no difference in what the ranks call" + (f", but {speed}" if (speed := _speed(found)) else "")


def _speed(found: Comparison) -> str:
    from unhang.analyze.calls.compare import MUCH_SLOWER

    ratio = found.slowdown
    if ratio is None or 1 / MUCH_SLOWER < ratio < MUCH_SLOWER:
        return ""
    return f"this run is {ratio:.2f} times slower" if ratio > 1 else f"this run is {1 / ratio:.2f} times faster"


def _divergence(d: Divergence) -> str:
    shows_places = d.is_place or (d.our_place and d.their_place and d.our_place != d.their_place)
    sides = ((d.ours, d.our_place), (d.theirs, d.their_place))
    ours, theirs = ((what or "no call") + (f" at {at}" if at and shows_places else "") for what, at in sides)
    return f"{name_ranks(d.ranks)}: at #{d.seq} of {d.group} {ours} against {theirs}"


def _values(values: Sequence[str], most: int = 4) -> str:
    shown = "; ".join(values[:most]) or "none besides the common ones"
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")


def _groups_of_one_run(groups: Sequence[ProcessGroup]) -> str:
    """`128 groups of 8 ranks`, or the group itself where it is the only one."""
    if not groups:
        return "none"
    if len(groups) == 1:
        ranks = groups[0].ranks
        return f"group {groups[0].name}" + (f" of {name_ranks(ranks)}" if ranks else ", ranks not recorded")
    sizes = Counter(len(g.ranks) for g in groups)
    parts = [f"{n} groups of {f'{size} ranks' if size else 'unknown ranks'}" for size, n in sorted(sizes.items())]
    first = groups[0]
    return ", ".join(parts[:3]) + (f" (group {first.name}: {fold_ranks(first.ranks, 4)})" if first.ranks else "")


def _group(change: GroupChange) -> str:
    return f"{change.desc}: {_groups_of_one_run(change.ours)} against {_groups_of_one_run(change.theirs)}"


def _step(step: StepTime | None) -> str:
    if step is None:
        return "no repeating pattern"
    return f"{duration(step.seconds)} ({'each call' if step.calls == 1 else f'every {step.calls} calls'} alike)"


def _use_row(use: OpUse) -> tuple[str, ...]:
    calls = f"{use.our_calls:g} against {use.their_calls:g} calls per rank"
    return f"{use.op} of {use.desc}", calls, f"{use.our_rate:.3g} against {use.their_rate:.3g} per second"


def _runs(paper: Paper, found: Comparison) -> None:
    paper.heading("The runs")
    rows = [
        ("", "this run", "the other"),
        ("ranks", *map(str, found.world)),
        ("recorded calls", *map(str, found.calls)),
        ("ranks whose oldest calls are lost", *map(str, found.wrapped)),
        ("step", *map(_step, found.steps)),
    ]
    rows += [(pair.what, pair.ours, pair.theirs) for pair in found.software]
    paper.table(rows)
    for ranks, where in ((found.our_ranks_only, "this run"), (found.their_ranks_only, "the other run")):
        if ranks:
            paper.prose(f"Only in {where}: {name_ranks(ranks)}.")


def _program(paper: Paper, found: Comparison) -> None:
    if found.divergences:
        paper.heading("Where the programs diverge")
        paper.prose("The first call of each rank that differs: this run against the other.", style="dim")
        for d in found.divergences[:_MOST]:
            paper.prose(_divergence(d), lead="- ")
        paper.more(len(found.divergences) - _MOST)
    if found.groups:
        paper.heading("Process groups that differ")
        for change in found.groups[:_MOST]:
            paper.prose(_group(change), lead="- ")
        paper.more(len(found.groups) - _MOST)
    if found.sizes:
        paper.heading("Sizes that differ")
        paper.table(
            (f"{s.op} of {s.desc}", f"{_values(s.ours)} against {_values(s.theirs)}") for s in found.sizes[:_MOST]
        )
        paper.more(len(found.sizes) - _MOST)


def render_comparison(found: Comparison) -> str:
    """The comparison as text, without a final newline."""
    paper = Paper(False, text_width())
    verdict = "DIFFERENT" if not found.is_same_program else "SAME" if found.compared else "UNKNOWN"
    paper.line((verdict, "good" if verdict == "SAME" else "warn"), "  ", (_answer(found), "strong"))
    paper.prose(f"{found.compared} calls are in both recordings, matched by group and sequence number.", style="dim")
    _program(paper, found)
    _runs(paper, found)
    if found.uses:
        paper.heading("Recorded calls of each rank")
        paper.table(_use_row(use) for use in found.uses[:_MOST])
        paper.more(len(found.uses) - _MOST)
    return str(paper).rstrip("\n")


def comparison_json(found: Comparison) -> bytes:
    """The comparison as UTF-8 JSON without a final newline; `ours`, or the first of a pair, is the run that was given first."""
    report = {
        "schema": COMPARISON_SCHEMA,
        "is_same_program": found.is_same_program,
        "slowdown": found.slowdown,
        "answer": _answer(found),
        **asdict(found),
    }
    return encoded(report)
