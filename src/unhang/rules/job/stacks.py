"""The rule on stacks that end in different calls, where no recorded call says how the ranks parted."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.analyze.callpath import Fork, fork_of, line_to_look_at
from unhang.analyze.leaving import all_in_unknown_calls
from unhang.analyze.pasted import Doing, doings_of
from unhang.analyze.situation import Situation
from unhang.analyze.source import surroundings
from unhang.analyze.standing import Stand, has_all_calls, sides, stands
from unhang.rules import wording as w
from unhang.rules.base import Found, rule


@rule("stacks-disagree")
def stacks_disagree(s: Situation) -> Found | None:
    """Named ranks whose stacks end in different calls: in a log, or in looks from outside."""
    is_unknown = bool(all_in_unknown_calls(s))
    if s.standing is not None or is_unknown:
        return _apart(s, stands(s.case, is_unknown)) if s.is_hang and not has_all_calls(s.case) else None
    named = [d for d in doings_of(s) if d.ranks]
    waiting = [d for d in named if d.kind in ("collective", "idle")]
    ways: dict[tuple[str, str], list[Doing]] = {}
    for d in waiting:
        way = ("", "") if d.kind == "idle" else (d.what, d.caller.function if d.caller else "")
        ways.setdefault(way, []).append(d)
    calls = {what for what, _ in ways}
    if (
        len(named) != len(waiting)
        or len(ways) < 2
        or (len(calls) < 2 and any(not place for _, place in ways))
        or calls == {""}
    ):
        return None
    ranks_of = {way: sorted({r for d in found for r in d.ranks}) for way, found in ways.items()}
    fewest = min(map(len, ranks_of.values()))
    odd = [way for way, ranks in ranks_of.items() if len(ranks) == fewest]
    culprits = tuple(ranks_of[odd[0]]) if len(odd) == 1 else ()
    words = {
        "sides": "; ".join(
            f"{w.name_ranks(ranks)} {w.verb(ranks, 'waits', 'wait') if what else w.verb(ranks, 'has', 'have')} {_where(what, place)}"
            for (what, place), ranks in ranks_of.items()
        ),
        "odd": f"{w.name_ranks(culprits)} left the way that most ranks took."
        if culprits
        else "No way has fewer ranks than the others.",
    }
    evidence = [w.stack_of(d) for d in waiting[:6]]
    return Found(
        0.85 if len(calls) > 1 and all(calls) else 0.7,
        culprits,
        evidence,
        words,
        victims=s.others(culprits) if culprits else (),
        location=w.location_of(ways[odd[0]][0].caller) if culprits else None,
    )


def _where(what: str, place: str) -> str:
    if not what:
        return "returned, and waits for the next task"
    return f"in {what}{f', called by {place}' if place else ''}"


def _apart(s: Situation, found: Mapping[int, Stand]) -> Found | None:
    """Ranks that all stand in calls with others which cannot meet. Of a group that was given nobody knows the members."""
    several = sides(found.values())
    if (
        len(several) < 2
        or len(found) < len(s.case.ranks)
        or any(x.is_transfer or x.is_of_device for x in found.values())
    ):
        return None
    few = [side for side in several if len(side) == len(several[-1])]
    is_told = len(few) == 1 and not any(x.has_group for x in found.values())
    odd, usual = several[-1][0], several[0][0]
    culprits = tuple(sorted(x.rank for x in few[0])) if is_told else ()
    fork = fork_of(usual.path, odd.path)
    where = line_to_look_at(usual.path, odd.path, fork, fork is not None and _has_passed(fork))
    ranks_of = {side[0]: sorted(x.rank for x in side) for side in several}
    words = {
        "sides": "; ".join(
            f"{w.name_ranks(ranks)} {w.verb(ranks, 'waits', 'wait')} in {side.op}{w.at(side.path[-1] if side.path else None)}"
            for side, ranks in ranks_of.items()
        ),
        "odd": f"{w.name_ranks(culprits)} left the way that most ranks took." if culprits else _NOT_TOLD,
    }
    evidence = [line for side in several[:4] for line in w.stack_lines(s.case.ranks[side[0].rank], 4)]
    return Found(
        0.75 if is_told else 0.6,
        culprits,
        [*evidence, *w.code_line(where, "source")],
        words,
        victims=s.others(culprits) if culprits else (),
        location=w.location_of(where) if culprits else None,
    )


def _has_passed(fork: Fork) -> bool:
    """Whether the odd ranks stand behind the line of the others, in the same round: they have left out the call of that line."""
    loops = [surroundings(f.file, f.line).loops for f in (fork.left, fork.right)]
    return fork.right.line > fork.left.line and loops[0] == loops[1]


_NOT_TOLD = "Which side is wrong is not told from outside."
