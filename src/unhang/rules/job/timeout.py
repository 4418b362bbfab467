"""Rules on waits that ran out although the calls match: who was missing, and what it did instead, as far as logs and stacks show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from unhang.analyze.failures import is_timeout
from unhang.analyze.lines import log_progress
from unhang.analyze.lines.first_errors import errors_of, first_error
from unhang.analyze.lines.going_on import (
    Known,
    bars_of_unlike_length,
    may_wait,
    missing_by_lines,
    silent_ranks,
    turned_to,
    uneven_amounts,
    works_on,
)
from unhang.analyze.lines.logged_calls import GroupCounters, TimedOut, lines_of, minority
from unhang.analyze.lines.pasted import doings_of
from unhang.analyze.situation import Situation
from unhang.model import LogEvent, grouped
from unhang.rules import wording as w
from unhang.rules.advice import (
    EQUAL_BATCHES,
    NO_LONGER_TIMEOUT,
    OF_THE_DATA,
    OF_THE_PROGRAM,
    RECORD_IT,
    SEE_IT,
)
from unhang.rules.base import Found, Names, rule
from unhang.rules.failure import name_or
from unhang.rules.log_lines import found_in, only_rank, quote, ranks_in

_SMALL, _MOST_SIDES = 1024, 3
_ENDED_THERE = ("store.unique_id", "ending.cancelled", "python.interrupted", "elastic.death_signal")
_LATE_WATCHDOG = 1.5


def _missed(s: Situation) -> list[tuple[int, LogEvent]]:
    """The ranks that rank 0, or a service, missed in a barrier, with the lines that say so."""
    lines = s.events.of("gloo.monitored_barrier_missing", *(["store.absent_task"] * s.events.has("store.barrier_left")))
    return [(n, e) for e in lines if (n := e.number("missing" if e["missing"] else "absent")) is not None]


@rule("no-data-left")
def no_data_left(s: Situation) -> Iterator[Found]:
    """If somebody waited too long and nobody had trained on before; accused is whom rank 0 missed, else who said it and did not wait."""
    events = [e for e in s.events.of("progress.no_data") if not log_progress.trained_on_after(s.events, e)]
    if events and any(e.says == "hang" for e in s.events):
        culprits = tuple(sorted({n for n, _ in _missed(s)}))
        if not culprits:
            culprits = ranks_in(events)
            if set(culprits) & set(s.watchdogs.ranks) or len(culprits) >= len(s.case.world or (0, 0, 0)):
                culprits = ()
        yield found_in(s, events, 0.85, culprits, fixes=(EQUAL_BATCHES, NO_LONGER_TIMEOUT))


@rule("uneven-amounts")
def uneven_amounts_of_ranks(s: Situation) -> Iterator[Found]:
    """If the ranks said that they have unlike amounts of data, and some of them, not all, waited in one call until their limit."""
    waits, ranks = s.watchdogs.timed_out, s.watchdogs.ranks
    if bars := bars_of_unlike_length(s) if first_error(s) is None else ():
        short = silent_ranks(s)
        told = {"who": name_or(short, "a rank"), "have": w.verb(short or (0,), "has", "have")}
        told |= {"least": bars[0]["total"], "most": bars[-1]["total"]}
        yield Found(0.8, short, quote([*bars, *lines_of(waits)[:2]]), told, "bars", fixes=OF_THE_DATA, victims=ranks)
        return
    amounts = uneven_amounts(s) if waits and len({(x.op, x.seq) for x in waits if x.op}) == 1 else ()
    least = min((a.amount for a in amounts), default=0)
    short = tuple(a.rank for a in amounts if a.amount == least)
    if not short or set(short) & set(ranks) or first_error(s) is not None:
        return
    lines = [w.log_line(f"rank {a.rank}", a.line) for a in amounts[:6]]
    words = {"who": w.name_ranks(short), "have": w.verb(short, "has", "have"), "least": least}
    words["most"] = max(a.amount for a in amounts)
    yield Found(0.8, short, (*lines, *quote(lines_of(waits), 3)), words, fixes=OF_THE_DATA, victims=ranks)


@rule("unbounded-data")
def unbounded_data(s: Situation) -> Iterator[Found]:
    """The last such line, if ranks wait in the same call after it, and not in the first calls of the job."""
    known, ranks = s.events.of("progress.unbounded"), s.watchdogs.ranks
    waits = [x for x in s.watchdogs.timed_out if x.op]
    if not known or not waits or len({(x.op, x.numel_in) for x in waits}) != 1 or s.watchdogs.lagging[0]:
        return
    if ranks == tuple(range(len(ranks))) or not 0 < (waits[0].numel_in or 0) <= _SMALL:
        return
    if known[-1].order < waits[0].events[0].order and (waits[0].seq or 0) > 10:
        yield found_in(s, known[-1:], 0.65, (), fixes=OF_THE_DATA)


@rule("other-modules")
def other_modules(s: Situation) -> Iterator[Found]:
    """If ranks wait in an all-gather and nobody had trained on before; accused is who gathers something else than the majority."""
    events = [e for e in s.events.of("progress.trace_cache") if not log_progress.trained_on_after(s.events, e)]
    if events and any("ALLGATHER" in x.op for x in s.watchdogs.timed_out):
        odd = (minority({x.rank: x.numel_in for x in at if x.rank is not None}) for at in s.watchdogs.positions)
        fixes = ("same-modules", SEE_IT, NO_LONGER_TIMEOUT)
        yield found_in(s, events, 0.8, next(filter(None, odd), ()), fixes=fixes)


@rule("rank-lags", names=Names.FAILURE)
def rank_lags(s: Situation) -> Iterator[Found]:
    """A rank that is one behind, where nothing tells what it does instead."""
    by, late, others = s.watchdogs.behind
    if by != 1 or len(late) + len(others) < 3 or log_progress.work_before_the_wait(s.events) is not None:
        return
    if log_progress.failed_by_itself(s.failures) is None:
        ranks, lines = _ranks(late), quote(c.event for c in (*late, *others))
        words = {"ranks": w.name_ranks(ranks), "are": w.verb(ranks, "is", "are"), "issued": late[0].enqueued}
        words["others"] = others[0].enqueued
        yield Found(0.65, ranks, lines, words, fixes=OF_THE_DATA, victims=_ranks(others))


def _ranks(counters: Sequence[GroupCounters]) -> tuple[int, ...]:
    return tuple(sorted(c.rank for c in counters))


@rule("rank0-alone")
def rank0_alone(s: Situation) -> Iterator[Found]:
    """If rank 0 is the only one that waited."""
    waits = s.watchdogs.timed_out
    if s.watchdogs.ranks != (0,) or s.watchdogs.seen not in ((), (0,)) or s.watchdogs.lagging[0]:
        return
    if any(e["from_rank"] not in ("", "0") for e in s.events.of("watchdog.dump_signal")):
        return
    if s.events.has("progress.rank_done") or log_progress.failed_by_itself(s.failures) is not None:
        return
    work = log_progress.work_before_the_wait(s.events) or s.events.first("work.ended")
    if work is not None or any(x.keeps_cpu and not x.is_barrier for x in waits):
        yield Found(
            0.75 if work and work.kind != "work.evaluating" else 0.6,
            (0,) if work else silent_ranks(s),  # another rank may have left before it, without a word
            (*(quote([work]) if work else ()), *quote(lines_of(waits))),
            {"call": waits[0], "after": f", after it printed: {work.text.strip()[:80]}" if work else ""},
            fixes=OF_THE_PROGRAM,
            victims=(),
            collective={"op": waits[0].op, "seq": waits[0].seq},
        )


@rule("waits-for-input")
def waits_for_input(s: Situation) -> Found | None:
    """A question of a program that nobody answered, if others waited in vain behind it, or somebody ended the job there.

    The rank is told by the line; else it is the one that the others waited for in the store.
    """
    asked = s.events.of("progress.prompt")
    ended = [e for e in s.events if e.says == "hang" or e.kind in _ENDED_THERE]
    behind = [e for e in ended if asked and e.order > asked[-1].order]
    if not behind or any(e.is_progress and asked[-1].order < e.order < behind[0].order for e in s.events):
        return None
    rank = asked[-1].rank
    waited = set(s.watchdogs.ranks) | {e.rank for e in s.events.of("store.unique_id") if e.rank is not None}
    if rank is not None and rank in waited:
        return None
    awaited = _awaited_in_store(s)[0] or ((0,) if s.watchdogs.all_but_0_of(s.case.job.world_size) else ())
    ranks = (rank,) if rank is not None else awaited or only_rank(s)
    words = {"who": w.name_ranks(ranks) if ranks else "a rank", "question": asked[-1].text.strip()[-120:]}
    found = found_in(s, [asked[-1], *behind[:3]], 0.88 if ranks else 0.8, ranks, words=words)
    return replace(found, victims=tuple(sorted(waited)))


def _awaited_in_store(s: Situation) -> Known:
    """The rank whose NCCL id all others waited for in the store until their limit."""
    lines = [e for e in s.events.of("store.unique_id") if "ime" in e["reason"] and e.number("from_rank") is not None]
    from_rank = {e.number("from_rank") for e in lines}
    ranks = tuple(n for n in from_rank if n is not None) if len(from_rank) == 1 else ()
    return ranks, "did not make its part of the first call", lines


_SAVES_TOGETHER = re.compile(r"FSDP|ZeRO|DeepSpeed|[Ss]harded")
_GONE = ("rdma.completion_error", "nccl.echo_peer_closed", "nccl.cuda_failure")
_WHAT = {
    "work.preparing": "⟨prepares|prepared⟩ data",
    "compiles": "⟨compiles|compiled⟩ kernels",
    "work.saving": "⟨saves|saved⟩",
    "work.evaluating": "⟨evaluates|evaluated⟩",
    "progress.bar": "⟨works|worked⟩ on something that the others ⟨take|took⟩ no part in",
}
_OF_TRAINING = re.compile(
    r"\b(?:episodes?|train(?:ing)?[ _](?:epoch|step)s?) *[\[:]|\bepochs? ?\[?\d+(?:/\d+)?\]?:? {1,4}\d{1,3}%\|",
    re.IGNORECASE,
)
# In evaluation they gather what a sharded model needs: there all ranks evaluate, and one of them is missing.
_SHARDED = frozenset({"_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLTOALL_BASE"})


@rule("rank0-works-alone")
def rank0_works_alone(s: Situation) -> Iterator[Found]:
    """Rank 0, where it is at work, or says nothing while the others wait in what may be a barrier; another one where it prints on."""
    waits, ranks, first, busy = s.watchdogs.timed_out, s.watchdogs.ranks, s.watchdogs.first, works_on(s)
    who = busy.rank or 0 if busy else 0
    awaited, _, asked = _awaited_in_store(s)
    if not waits and awaited == (who,):  # in the first call of all, where no watchdog counts yet
        first, ranks = asked[0], tuple(sorted({e.rank for e in asked if e.rank is not None}))
    if (
        who in {*ranks, *(e.rank for e in s.events.of("watchdog.stuck"))}  # its own calls do not end, either
        or s.watchdogs.lagging[0]
        or log_progress.failed_by_itself(s.failures) is not None
        or _failed_before(s, first)
    ):
        return
    blamed = [n for n, _ in _missed(s)]
    waits_itself = any(d.kind == "collective" and who in d.ranks for d in doings_of(s))
    if waits_itself or (blamed and who not in blamed):
        return
    work = busy or log_progress.work_before_the_wait(s.events) or _foreign_bar(s, waits) or turned_to(s)
    if work is not None and (_all_take_part(s, work, waits) or _goes_on_for_all(s, work)):
        return
    is_barrier = any(x.is_barrier for x in waits)
    elapsed_s = log_progress.elapsed_s(work) if work and work.kind == "work.preparing" and work["elapsed"] else None
    outlasts_every_limit = (elapsed_s or 0) >= log_progress.DEFAULT_LIMIT_S
    if work is not None and (first is not None or outlasts_every_limit):
        say = "before" if not waits else "waited" if is_barrier or work.kind != "work.saving" else "saves"
        confidence = (
            0.85 if is_barrier and work.kind in _WHAT else 0.7 if first is not None and work.kind in _WHAT else 0.6
        )
        evidence = (*quote([work]), *quote(lines_of(waits) or asked, 4))
    elif work is None and _may_be_barrier(s, waits) and not log_progress.is_training_last(s.events):
        say, confidence, evidence = "silent", 0.6, quote(lines_of(waits))
    else:
        return
    limit_ms = next((x.limit_ms for x in waits if x.limit_ms), None)
    words = {
        "who": w.name_ranks((who,)),
        "what": _what(work) if work else "",
        "elapsed": f" (after {work['elapsed']}, {work['left']} left)"
        if work and work["elapsed"] and work["left"]
        else "",
        "waiters": f"{w.name_ranks(ranks)} {w.verb(ranks, 'waits', 'wait')}" if waits else "",
        "call": waits[0] if waits else "",
        "limit": f" (it is {limit_ms // 1000} s)" if limit_ms else "",
    }
    call = {"op": waits[0].op, "seq": waits[0].seq} if waits else None
    fixes = ("once", "limit", "no-network", SEE_IT)
    yield Found(confidence, (who,), evidence, words, say, fixes, ranks, collective=call)


def _what(work: LogEvent) -> str:
    kind = "compiles" if work["compiles"] or work["compiles_"] else work.kind
    return _WHAT.get(kind, f"turned to something else ({work.text.strip()[-60:]})")


def _goes_on_for_all(s: Situation, work: LogEvent) -> bool:
    """Whether a bar counts rounds of the training itself, or as many as that of another host: all ranks make these."""
    if work.kind != "progress.bar":
        return False
    others = (e for e in s.events.of("progress.bar") if work.host and e.host and e.host != work.host)
    return bool(_OF_TRAINING.search(work.text)) or any(e["total"] == work["total"] for e in others)


def _failed_before(s: Situation, waited: LogEvent | None) -> bool:
    """Whether something else had failed before anybody's wait ran out: an exception, a peer that was gone, the transport."""
    first = first_error(s)
    failed = [*([first.order] if first else ()), *(e.order for e in s.events.of(*_GONE))]
    return any(waited is None or order < waited.order for order in failed)


def _all_take_part(s: Situation, work: LogEvent, waits: Sequence[TimedOut]) -> bool:
    """Whether all ranks may take part in it, so that the call in which others wait may belong to it."""
    if work.kind == "work.evaluating":
        gathers = any("gather" in f.function for e in errors_of(s) for f in e.frames)
        is_left_to_0 = not waits or any(x.is_barrier for x in waits) or s.watchdogs.all_but_0_of(s.case.job.world_size)
        is_left_to_0 = is_left_to_0 or (len(s.watchdogs.ranks) > 1 and _wait_for_a_result(s, waits))
        return gathers or not is_left_to_0 or any("GATHER" in x.op or x.op in _SHARDED for x in waits)
    is_shared = work.kind == "work.saving" and bool(_SAVES_TOGETHER.search(work.text))
    return work.kind == "work.saving" and any(x.op in _SHARDED or (is_shared and "GATHER" in x.op) for x in waits)


def _wait_for_a_result(s: Situation, waits: Sequence[TimedOut]) -> bool:
    """Whether what they wait for is a few numbers or an object from a root: what comes out of an evaluation."""
    is_small = all(x.numel_in is not None and x.numel_in <= _SMALL for x in waits)
    is_object = any(f.function == "broadcast_object_list" for e in errors_of(s) for f in e.frames)
    return all(x.op == "BROADCAST" for x in waits) and (is_small or is_object)


def _foreign_bar(s: Situation, waits: Sequence[TimedOut]) -> LogEvent | None:
    limits = [x.limit_ms for x in waits if x.limit_ms]
    positions = [x.seq for x in waits if x.seq is not None]
    if not limits:
        return None
    limit_s = min(limits) // 1000
    return log_progress.bar_beside_the_wait(
        s.events, limit_s, max(positions, default=None)
    ) or log_progress.preparing_bar(s.events, limit_s)


def _may_be_barrier(s: Situation, waits: Sequence[TimedOut]) -> bool:
    """Whether it looks like one and all but rank 0 wait in it, or is one, and rank 0 printed on when the others had come to it.

    What one rank or one node prints says nothing of rank 0, and what is silent in a world of unknown size, nothing of its cause.
    """
    world = s.case.job.world_size
    if world is not None and _looks_like_barrier(s, waits) and s.watchdogs.all_but_0_of(world):
        return bool(waits)
    ranks = s.watchdogs.ranks
    is_most = len(ranks) > 1 and 2 * len(ranks) >= max(s.case.job.world_size or 0, ranks[-1] + 1) - 1
    is_known = is_most and all(x.is_barrier and (x.seq or 0) > 1 for x in waits)
    is_known = is_known and not s.watchdogs.has_subgroups and 0 not in may_wait(s)
    return is_known and log_progress.printed_last(s.case.log, waits[0].events[0].order) == 0


def _looks_like_barrier(s: Situation, waits: Sequence[TimedOut]) -> bool:
    """Whether all wait in a barrier or the first small call, and rank 0 may be the only one that does not.

    In the very first call two ranks may as well have no connection to each other: there all but rank 0 must be known to wait.
    """
    for wait in waits:
        is_first = wait.seq is not None and wait.seq <= 2 and wait.numel_in is not None
        is_small = is_first and (wait.numel_in or 0) <= _SMALL
        if wait.op and not wait.is_barrier and not (is_small and wait.op == "BROADCAST"):
            return False
    ranks = s.watchdogs.ranks
    if not any(x.op for x in waits) or not ranks or 0 in may_wait(s) or s.watchdogs.has_subgroups:
        return False
    if all(x.seq is None or x.seq <= 1 for x in waits):
        return s.watchdogs.all_but_0_of(s.case.job.world_size) and len(ranks) > 1
    return s.watchdogs.all_but_0_of(s.case.job.world_size) or (s.case.job.world_size is None and len(ranks) <= 2)


@rule("timeout-unexplained", names=Names.NOTHING)
def timeout_unexplained(s: Situation) -> Iterator[Found]:
    """Who waited, in what, who was missing as far as it is known, and what would decide."""
    hangs = [e for e in s.events if e.says == "hang"] or list(_awaited_in_store(s)[2])
    if not hangs or len(s.case.calls) or any(r.stacks for r in s.case.ranks.values()):
        return
    missing, why, lines = _missing(s)
    waits, ranks = s.watchdogs.timed_out, s.watchdogs.ranks
    sides = grouped((str(x), x.rank) for x in waits if x.rank is not None)
    waited = [f"{w.name_ranks(sorted(set(of)))} waited in {call}" for call, of in sides.items()]
    if len(waited) > _MOST_SIDES:
        waited = [*waited[:_MOST_SIDES], "others elsewhere"]
    words = {
        "who": "; ".join(waited) or (f"a rank waited in {waits[0]}" if waits else "a rank waited"),
        "missing": f"{w.name_ranks(missing)} {why}" if missing else "the log does not say who was missing",
        "remarks": "".join(f"{remark} " for remark in _remarks(s)),
    }
    yield Found(
        0.3,
        missing,
        (*quote(lines, 3), *quote(lines_of(waits) or hangs, 5)),
        words,
        fixes=(SEE_IT, RECORD_IT),
        victims=tuple(r for r in ranks if r not in missing),
        collective={"op": waits[0].op, "seq": waits[0].seq} if waits else None,
    )


def _missing(s: Situation) -> Known:
    """(ranks that were missing or behind, how that is known, the lines)."""
    lagging, lines = s.watchdogs.lagging
    if lagging:
        return lagging, "had stopped before that call, as torch's own report says", lines
    by, late, _ = s.watchdogs.behind
    if by:
        return _ranks(late), f"had issued {'one call' if by == 1 else f'{by} calls'} fewer", [c.event for c in late]
    if accused := s.events.of("frtrace.culprit"):
        return s.events.ranks("frtrace.culprit"), "differed, as torch's analyser says", accused
    if missed := _missed(s):
        return tuple(sorted({n for n, _ in missed})), "did not come to the barrier", [e for _, e in missed]
    if (awaited := _awaited_in_store(s))[0] and not any(e.says == "hang" for e in s.events):
        return awaited
    known = missing_by_lines(s) or _only_silent_one(s)
    is_0 = len(s.watchdogs.ranks) > 1 and s.watchdogs.all_but_0_of(s.case.job.world_size)
    silent = silent_ranks(s) or ((0,) if is_0 and _looks_like_barrier(s, s.watchdogs.timed_out) else ())
    return known or (silent, "reported no wait", ())


def _only_silent_one(s: Situation) -> Known | None:
    """The one rank that the launcher ended while all others told that their wait had run out."""
    ended = {r for r, e in s.case.ranks.items() if e.exit is not None}
    waited = {e.rank for e in errors_of(s) if e.rank is not None and is_timeout(e.error)} | set(s.watchdogs.ranks)
    silent = sorted(r for r in ended - waited if s.case.ranks[r].error is None)
    if len(silent) != 1 or len(waited) < 2 or ended != waited | set(silent) or silent[0] in may_wait(s):
        return None
    return tuple(silent), "reported no wait", [e for e in s.events if e.says == "hang" and e.rank in waited]


def _remarks(s: Situation) -> Iterator[str]:
    """What the numbers show, without a cause."""
    waits = s.watchdogs.timed_out
    late = next((x for x in waits if x.limit_ms and x.ran_ms and x.ran_ms > _LATE_WATCHDOG * x.limit_ms), None)
    if late is not None and late.ran_ms and late.limit_ms:
        yield f"The watchdog spoke after {late.ran_ms // 1000} s although the limit is {late.limit_ms // 1000} s: it was held up itself."
    if s.events.has("watchdog.stuck"):
        yield "The heartbeat monitor says that the watchdog thread was stuck: held by a CUDA call or the GIL, not by the collective."
    ahead = next((x for x in waits if x.enqueued and x.seq and x.enqueued > x.seq), None)
    if ahead is not None and ahead.enqueued and ahead.seq:
        more = ahead.enqueued - ahead.seq
        yield f"Rank {ahead.rank} had issued {more} {'call' if more == 1 else 'calls'} after the one that waits: its program ran on."
    if len({x.seq for x in waits if x.seq is not None}) > 1 and len(s.watchdogs.ranks) > 1:
        yield "The ranks wait at different positions: a root of a broadcast may go on before the others, so this alone is no fault."
    if s.events.has("ddp.inconsistent_params"):
        yield '"0 params" is what a first collective that never ran leaves behind, not another model.'
