"""Rules on what the ranks say in their own lines: one skips or leaves, some take another branch, or they count differently."""

from __future__ import annotations

from unhang.analyze.first_errors import first_error
from unhang.analyze.log_progress import work_before_the_wait
from unhang.analyze.logged_calls import lines_of
from unhang.analyze.odd_ones import counted_past, late_in_common_work, told_its_end
from unhang.analyze.own_lines import OwnLine
from unhang.analyze.situation import Situation
from unhang.analyze.told_apart import another_branch, few_in_a_call, skipped_or_left, took_longer, unlike_numbers
from unhang.rules import wording as w
from unhang.rules.advice import EQUAL_BATCHES, EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, SEE_IT
from unhang.rules.base import OTHERWISE, Found, rule
from unhang.rules.log_lines import MOST_WORDS, quote, quote_own

_OF_THE_PROGRAM = (EVERY_RANK_CALLS, SEE_IT, NO_LONGER_TIMEOUT)


def _failed_before(s: Situation) -> bool:
    first, waited = first_error(s), s.watchdogs.first
    return first is not None and (waited is None or first.order < waited.order)


@rule("skipped-by-some")
def skipped_by_some(s: Situation) -> Found | None:
    """Surer where a wait ran out behind it than where somebody ended the job."""
    apart = None if _failed_before(s) else skipped_or_left(s)
    if apart is None:
        return None
    others = s.others(apart.ranks)
    words = {
        "who": w.name_ranks(apart.ranks),
        "said": apart.lines[0].said[:MOST_WORDS],
        "others": w.name_ranks(others) if others else "the others",
    }
    return Found(
        0.75 if s.watchdogs.first is not None else 0.62,
        apart.ranks,
        (*quote_own(apart.lines), *quote(lines_of(s.watchdogs.timed_out), 2)),
        words,
        fixes=(EQUAL_BATCHES, SEE_IT, NO_LONGER_TIMEOUT) if apart.is_data else _OF_THE_PROGRAM,
        victims=others,
        cause="uneven-inputs" if apart.is_data else "",
    )


@rule("another-branch")
def in_another_branch(s: Situation) -> Found | None:
    """Several ranks that never came to the call in which the others waited, where both sides tell what they did instead."""
    apart = None if _failed_before(s) else another_branch(s)
    if apart is None:
        return None
    waits = s.watchdogs.timed_out
    words = {"who": w.name_ranks(apart.ranks), "others": w.name_ranks(s.watchdogs.ranks), "call": waits[0]}
    return Found(
        0.75,
        apart.ranks,
        (*quote_own(apart.lines), *quote(lines_of(waits), 2)),
        words,
        fixes=_OF_THE_PROGRAM,
        victims=s.watchdogs.ranks,
        collective={"op": waits[0].op, "seq": waits[0].seq},
    )


@rule("call-of-a-few")
def call_of_a_few(s: Situation) -> Found | None:
    """The ranks that wait, if they are fewer; of two halves neither is accused."""
    few = None if _failed_before(s) or work_before_the_wait(s.events) is not None else few_in_a_call(s)
    if few is None:
        return None
    waits = [x for x in s.watchdogs.timed_out if x.rank in few.waiting]
    counters = [c.event for c in s.watchdogs.counters if c.rank in few.idle]
    words = {
        "who": w.name_ranks(few.waiting),
        "call": few.wait,
        "others": w.name_ranks(few.idle),
        "have": w.verb(few.idle, "has", "have"),
    }
    return Found(
        0.68,
        few.waiting if len(few.waiting) < len(few.idle) else (),
        (*quote(lines_of(waits), 3), *quote(counters, 3)),
        words,
        fixes=_OF_THE_PROGRAM,
        collective={"op": few.wait.op, "seq": few.wait.seq},
    )


@rule("unlike-numbers")
def unlike_in_the_last_round(s: Situation) -> Found | None:
    """A shape is of a tensor that they exchange; batches are what a loop goes by, and explain that the calls differ; other numbers may decide a branch."""
    unlike = None if _failed_before(s) else unlike_numbers(s)
    if unlike is None:
        return None
    sides: dict[tuple[str, ...], list[OwnLine]] = {}
    for line in unlike.lines:
        sides.setdefault(line.values, []).append(line)
    fewest = min(map(len, sides.values()))
    few = [side for side in sides.values() if len(side) == fewest]
    culprits = unlike.odd or (tuple(x.rank for x in few[0] if x.rank is not None) if len(few) == 1 else ())
    first, other = (side[0].said[:MOST_WORDS] for side in list(sides.values())[:2])
    is_rounds = unlike.is_rounds and not unlike.is_shape
    return Found(
        0.78 if is_rounds else 0.75 if unlike.is_shape else 0.65,
        culprits,
        (*quote_own(unlike.lines), *quote(lines_of(s.watchdogs.timed_out), 2)),
        {"first": first, "other": other},
        f"{'shape' if unlike.is_shape else OTHERWISE}/{'calls' if unlike.odd else OTHERWISE}",
        fixes=(EQUAL_BATCHES, SEE_IT, NO_LONGER_TIMEOUT) if is_rounds else _OF_THE_PROGRAM,
        victims=s.others(culprits) if culprits else (),
        cause="size-mismatch" if unlike.is_shape else "uneven-inputs" if is_rounds else "",
    )


@rule("took-longer")
def took_longer_than_others(s: Situation) -> Found | None:
    """Ranks at work for longer than the others waited: late, not missing."""
    late = None if _failed_before(s) else took_longer(s)
    if late is None:
        return None
    words = {"who": w.name_ranks(late.ranks), "seconds": f"{late.seconds:.0f}", "usual": f"{late.usual_s:.3g}"}
    words["said"] = late.lines[0].said[:MOST_WORDS]
    evidence = (*quote_own(late.lines), *quote(lines_of(s.watchdogs.timed_out), 2))
    return Found(0.78, late.ranks, evidence, words, victims=s.watchdogs.ranks)


@rule("counted-past")
def counted_past_the_waiting(s: Situation) -> Found | None:
    """Ranks that are done with a loop in which others wait: they had fewer rounds, or left early."""
    past = None if _failed_before(s) else counted_past(s)
    if past is None:
        return None
    waits = s.watchdogs.timed_out
    words = {"who": w.name_ranks(past.ranks), "said": past.lines[0].said[:MOST_WORDS], "call": waits[0]}
    words |= {"others": w.name_ranks(s.watchdogs.ranks), "theirs": past.lines[-1].said[:MOST_WORDS]}
    evidence = (*quote_own(past.lines), *quote(lines_of(waits), 2))
    fixes = (EQUAL_BATCHES, SEE_IT, NO_LONGER_TIMEOUT)
    return Found(0.78, past.ranks, evidence, words, fixes=fixes, victims=s.others(past.ranks))


@rule("told-its-end")
def ended_by_its_own_word(s: Situation) -> Found | None:
    """The rank that said that it ends."""
    told = None if _failed_before(s) else told_its_end(s)
    if told is None:
        return None
    waits = s.watchdogs.timed_out
    words = {"who": w.name_ranks(told.ranks), "said": told.lines[0].said[:MOST_WORDS]}
    words |= {"others": w.name_ranks(s.watchdogs.ranks), "call": str(waits[0]) if waits else "a call"}
    evidence = (*quote_own(told.lines), *quote(lines_of(waits), 3))
    return Found(0.79, told.ranks, evidence, words, fixes=("together", SEE_IT), victims=s.watchdogs.ranks)


@rule("late-in-common-work")
def late_with_common_work(s: Situation) -> Found | None:
    """Ranks still at work that the others are done with."""
    late = None if _failed_before(s) else late_in_common_work(s)
    if late is None:
        return None
    waits = s.watchdogs.timed_out
    words = {"who": w.name_ranks(late.ranks), "said": late.lines[0].said[:MOST_WORDS], "call": waits[0]}
    words["are"] = w.verb(late.ranks, "was", "were")
    evidence = (*quote_own(late.lines), *quote(lines_of(waits), 3))
    return Found(0.62, late.ranks, evidence, words, victims=s.watchdogs.ranks)
