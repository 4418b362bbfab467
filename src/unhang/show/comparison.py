"""Two runs side by side, as text and as JSON. The first line is the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from unhang.analyze.compare import MUCH_SLOWER, Comparison, GroupChange, OpUse, StepTime
from unhang.analyze.schedule import Divergence
from unhang.model import ProcessGroup
from unhang.model.rank_sets import fold_ranks, name_ranks
from unhang.show.paper import Paper, duration, text_width
from unhang.show.report_json import encoded

SCHEMA = "unhang.comparison/1"
_MOST = 12


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
    ratio = found.slowdown
    if ratio is None or 1 / MUCH_SLOWER < ratio < MUCH_SLOWER:
        return ""
    return f"this run is {ratio:.2f} times slower" if ratio > 1 else f"this run is {1 / ratio:.2f} times faster"


def _call(what: str, place: str) -> str:
    return (what or "no call") + (f" at {place}" if place else "")


def _divergence(d: Divergence) -> str:
    shows_places = d.is_place or (d.our_place and d.their_place and d.our_place != d.their_place)
    ours, theirs = (
        _call(what, place if shows_places else "") for what, place in ((d.ours, d.our_place), (d.theirs, d.their_place))
    )
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
    calls = f"{use.our_calls:g} against {use.their_calls:g}"
    return (
        f"{use.op} of {use.desc}",
        f"{calls} calls per rank",
        f"{use.our_rate:.3g} against {use.their_rate:.3g} per second",
    )


def _more(paper: Paper, count: int) -> None:
    if count > _MOST:
        paper.line((f"... and {count - _MOST} more", "dim"), indent=2)


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
        _more(paper, len(found.divergences))
    if found.groups:
        paper.heading("Process groups that differ")
        for change in found.groups[:_MOST]:
            paper.prose(_group(change), lead="- ")
        _more(paper, len(found.groups))
    if found.sizes:
        paper.heading("Sizes that differ")
        paper.table(
            (f"{s.op} of {s.desc}", f"{_values(s.ours)} against {_values(s.theirs)}") for s in found.sizes[:_MOST]
        )
        _more(paper, len(found.sizes))


def render_comparison(found: Comparison, color: bool = False) -> str:
    """The comparison as text, without a final newline."""
    paper = Paper(color, text_width())
    verdict = "DIFFERENT" if not found.is_same_program else "SAME" if found.compared else "UNKNOWN"
    paper.line((verdict, "good" if verdict == "SAME" else "warn"), "  ", (_answer(found), "strong"))
    paper.prose(f"{found.compared} calls are in both recordings, matched by group and sequence number.", style="dim")
    _program(paper, found)
    _runs(paper, found)
    if found.uses:
        paper.heading("Recorded calls of each rank")
        paper.table(_use_row(use) for use in found.uses[:_MOST])
        _more(paper, len(found.uses))
    return str(paper).rstrip("\n")


def comparison_json(found: Comparison) -> bytes:
    """The comparison as UTF-8 JSON without a final newline; `ours`, or the first of a pair, is the run that was given first."""
    report = {
        "schema": SCHEMA,
        "is_same_program": found.is_same_program,
        "slowdown": found.slowdown,
        "answer": _answer(found),
        **asdict(found),
    }
    return encoded(report)
