"""Rules on jobs that stand without a wait in a collective: at what a killed run left in shared memory, or in a driver whose workers are idle."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.analyze.lines.first_errors import first_error
from unhang.analyze.lines.own_lines import OwnLine, own_lines
from unhang.analyze.lines.pasted import Doing, doings_of
from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.model.lazy_pattern import lazy_pattern
from unhang.rules import wording as w
from unhang.rules.base import Found, rule
from unhang.rules.log_lines import quote, quote_own

_SHARED = lazy_pattern(r"/shared/|shared_?mem|/shm|multiprocessing/synchronize|semaphore|/ipc/")
_ANEW = lazy_pattern(r"^(?:\([\w.-]+\) ?)?(?:\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80})?[$#>] \S|^\+{1,3} \S")
_COUNT = lazy_pattern(r"(?<![\w./:=-])(\d{1,9}) ?(?:/|of) ?(\d{1,9})(?![\w./:-])")
_NUMBERS = lazy_pattern(r"\d+")
_LEAST_TOLD, _MOST_CHARS, _DEPTH = 4, 300, 4


@rule("left-shared-memory")
def left_shared_memory(s: Situation) -> Found | None:
    """A run that was ended by force had left shared memory, and the next one in the log stands in a wait on shared memory, without a step."""
    left = [e for e in s.events.of("python.leaked") if e["what"] != "semaphore"]
    if not left or not any(e.is_progress and e.order < left[0].order for e in s.events):
        return None
    stands = [d for d in doings_of(s) if d.line.text and _order(s, d) > left[0].order]
    where = next((d for d in stands if any(_SHARED.search(f.file) for f in d.frames[:_DEPTH])), None)
    if where is None or not _began_anew(s, left[-1], _order(s, where)):
        return None
    words = {"count": left[0]["count"], "place": w.spot(where.frames[0])}
    return Found(0.75, (), (*quote(left[:1]), w.stack_of(where)), words, location=where.caller)


def _order(s: Situation, doing: Doing) -> int:
    return next((i for i, x in enumerate(s.case.log) if x is doing.line), -1)


def _began_anew(s: Situation, left: LogEvent, at: int) -> bool:
    """Whether a command stands between the end of a run and this place, and nothing of what it began moved."""
    between = s.case.log[left.order + 1 : max(at, left.order + 1)]
    moved = any(e.is_progress and e.order > left.order for e in s.events)
    return not moved and any(_ANEW.search(x.text[:_MOST_CHARS]) for x in between)


@rule("driver-stands")
def driver_stands(s: Situation) -> Found | None:
    """The one process that is in its own code, where all others whose stacks are known have no task, and a count that somebody waits for stands."""
    doings = doings_of(s)
    away = [d for d in doings if d.kind in ("user", "lock") and d.caller is not None]
    idle = [d for d in doings if d.kind == "idle"]
    if len(away) != 1 or not idle or len(away) + len(idle) != len(doings) or first_error(s) is not None:
        return None
    stuck = _count_that_stands(s)
    if not stuck or s.watchdogs.first is not None:
        return None
    at = away[0].caller
    words = {"at": w.at(at), "place": w.place(at), "told": stuck[-1].said[:100], "times": len(stuck)}
    evidence = (*quote_own((stuck[0], stuck[-1])), *map(w.stack_of, (*away, *idle[:1])))
    return Found(0.75, away[0].ranks, evidence, words, location=at)


def _count_that_stands(s: Situation) -> Sequence[OwnLine]:
    """The last lines in the same words of a count that is not at its end, and is the same in all of them, behind the last step; it had moved before."""
    moved = max((e.order for e in s.events if e.is_progress), default=-1)
    told: dict[str, list[tuple[str, str, OwnLine]]] = {}
    for x in own_lines(s):
        count = _COUNT.search(x.line.text[:_MOST_CHARS]) if x.order > moved else None
        if count is not None and int(count[1]) < int(count[2]):
            words = " ".join(_NUMBERS.sub("#", x.line.text[: count.end()]).split())
            told.setdefault(words, []).append((count[1], count[2], x))
    for counts in told.values():
        same = [x for done, total, x in counts if (done, total) == counts[-1][:2]]
        if len(same) >= _LEAST_TOLD and len(same) < len(counts) and counts[-len(same) :][0][2] is same[0]:
            return same
    return ()
