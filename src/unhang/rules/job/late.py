"""Rules on a rank that its peers wait for, by what it is doing instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from unhang.analyze.calls.handled import led_away, swallowed_by
from unhang.analyze.failures import is_timeout
from unhang.analyze.lines.first_errors import errors_of
from unhang.analyze.lines.going_on import missing_by_lines, not_come
from unhang.analyze.lines.pasted import RANK_ZERO_FIRST, Doing, doings_of, is_ray_driver
from unhang.analyze.lines.phases import late_in_a_phase
from unhang.analyze.lines.told_apart import a_round_behind, lacks_data
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.slow_work import slower_at_work, too_late
from unhang.analyze.waits.leaving import destroyed_before
from unhang.analyze.waits.outside_waits import head_of_unbounded
from unhang.model import EvidenceLine, Fix, Frame, LogEvent, ThreadStack, user_frames
from unhang.read.ras import reports_in, silent_ranks
from unhang.rules import wording as w
from unhang.rules.advice import fixes_of
from unhang.rules.base import OTHERWISE, Found, rule
from unhang.rules.failure import first_exception, found_at_first, name_or
from unhang.rules.given_work import by_given_work
from unhang.rules.host_waits import remedy_of
from unhang.rules.item_repairs import end_mark, of_worker
from unhang.rules.late import (
    all_in_loaders,
    block_of_its_own,
    found_late,
    has_loader,
    holder_of,
    meets_alone,
    remedies,
    stack_of,
    waits_idly,
    worker_line,
    workers_of,
    works_alone,
    works_first,
)
from unhang.rules.log_lines import is_line_of, only_rank, quote, quote_own
from unhang.rules.repairs import of_limit
from unhang.rules.wording import both

_STARTS_WORKERS = (
    "multiprocessing/popen_spawn_posix.py",
    "multiprocessing/popen_forkserver.py",
    "multiprocessing/popen_spawn_win32.py",
)
_AT_WORK = ("user", "spinning", "gil", "lock", "outside", "device")
_MOST_LINES = 60


@rule("rank-frozen", needs=("states",))
def rank_frozen(s: Situation) -> Iterator[Found]:
    """One finding for each late rank that is stopped or sits in the kernel."""
    for late in s.late if s.judges_waits else ():
        if late.activity.kind == "frozen":
            pid, state = s.case.ranks[late.rank].identity.pid, s.case.ranks[late.rank].state
            seen = f"pid {pid} state {state.state if state else '?'} {state.wchan if state else ''}".strip()
            line = EvidenceLine(f"rank {late.rank} /proc", seen)
            yield found_late(s, late, 0.97, {"pid": pid}, evidence=(line,))


@rule("dataloader-hang")
def dataloader_hang(s: Situation) -> Iterator[Found]:
    """The loader's own timeout, stacks in a log, and each late rank that fetches data."""
    first = first_exception(s)
    if first is not None and first.names("cause.loader_timed_out"):
        yield found_at_first(s, first, 0.93, say="timed_out", fixes=_LOADER_FIXES)
    elif first is None:
        yield from _told_to_lack(s) or _fetching_by_stacks(s)
        yield from all_in_loaders(s)
    for late in s.late if s.judges_waits else ():
        if late.activity.kind == "data" and s.divergence is None and (has_loader(s, late) or not works_alone(s, late)):
            is_start = _starts_workers(s, late)
            workers = workers_of(s, late.rank)
            place = next((user_frames(t.frames)[0] for t in workers if user_frames(t.frames)), None)
            helps, more = (
                ("", {})
                if is_start
                else _of_mark(s, late, place, workers)
                or of_worker(place, late.activity.frame, workers[0].frames if workers else ())
            )
            fixes = _STARTS_FIXES if is_start else (helps, "fail first")
            words = {
                "worker": f", whose worker stands{w.at(place)}," if place is not None and not is_start else "",
                **more,
            }
            lines = tuple(worker_line(late.rank, t) for t in workers[:4])
            found = found_late(s, late, 0.93, words, say="starts" if is_start else "waits", fixes=fixes, evidence=lines)
            yield found if is_start or place is None else replace(found, location=place)


def _of_mark(
    s: Situation, late: LateRank, place: Frame | None, workers: Sequence[ThreadStack]
) -> tuple[str, Mapping[str, object]] | None:
    """The fix for workers that wait for an item while one that their loader had has ended at a mark of their queue."""
    facts = s.case.ranks[late.rank].facts if late.rank in s.case.ranks else ()
    most = max((int(f["workers"]) for f in facts if f.kind == "program.loader" and f["workers"]), default=0)
    marked = end_mark(place) if most > len(workers) else {}
    return ("mark back", marked) if marked else None


def _told_to_lack(s: Situation) -> Sequence[Found]:
    """Ranks that say themselves, again and again, that they have no data while the others wait."""
    apart = lacks_data(s)
    if apart is None:
        return ()
    evidence = [w.log_line(f"rank {x.rank}", x.line) for x in apart.lines[:4]]
    words = {"who": w.name_ranks(apart.ranks), "said": apart.lines[-1].said[:100]}
    victims = s.watchdogs.ranks
    return [Found(0.82, apart.ranks, evidence, words, victims=victims, say="told", fixes=_LOADER_FIXES)]


_LOADER_FIXES, _STARTS_FIXES = ("no fork", "fail first"), ("open there", "start once", "no loader timeout")


def _fetching_by_stacks(s: Situation) -> Iterator[Found]:
    """Stacks in a log that show some ranks in their loader, and no named rank elsewhere but in a collective."""
    doings = doings_of(s)
    fetching = [d for d in doings if d.kind == "loader"]
    others = [d for d in doings if d.kind not in ("loader", "worker") and d.ranks]
    if not fetching or any(d.kind != "collective" for d in others):
        return
    if len({d.ranks for d in fetching}) > max(1, len(others)):
        return
    named, caller = tuple(sorted({r for d in fetching for r in d.ranks})), fetching[0].caller
    missing = sorted(not_come(s)[1]) or (known[0] if (known := missing_by_lines(s)) is not None else ())
    ranks = named or only_rank(s) or (tuple(missing) if len(missing) == len(fetching) == 1 else ())
    ranks = ranks or (a_round_behind(s) if len(fetching) == 1 else ())
    words = {
        "who": name_or(ranks, "a rank"),
        "at": f" at {w.place(caller)}" if caller else "",
        "others": ", while the others wait for it in a collective." if others else "; a worker does not deliver it.",
    }
    yield Found(
        0.88 if ranks and others else 0.75,
        ranks,
        tuple(map(w.stack_of, (*fetching[:3], *others[:3]))),
        words,
        victims=tuple(sorted({r for d in others for r in d.ranks})),
        location=caller,
        say="stacks",
        fixes=_LOADER_FIXES,
    )


def _starts_workers(s: Situation, late: LateRank) -> bool:
    """Whether the rank pickles what its workers get: they are started by spawn or forkserver, not by fork."""
    evidence = s.case.ranks.get(late.rank)
    stack = evidence.main_stack if evidence else None
    return stack is not None and any(f.file.endswith(_STARTS_WORKERS) for f in stack.frames)


@rule("slow-rank0-work")
def slow_rank0_work(s: Situation) -> Iterator[Found]:
    """Rank 0 late inside a block of its own, live or by what the others' errors say."""
    yield from _waited_for_rank0(s)
    yield from _came_too_late(s)
    for late in s.late if s.judges_waits else ():
        test = works_alone(s, late)
        is_at_work = late.activity.kind in _AT_WORK or (late.activity.kind == "data" and not has_loader(s, late))
        if test and is_at_work and s.divergence is None and not waits_idly(s, late) and destroyed_before(s) is None:
            first = works_first(s, late)
            block = first.frame if first else block_of_its_own(s, late)
            words = {"test": test, "work": f"the block of `{test}`{w.at(block)}", "victims": w.name_ranks(late.victims)}
            if first:
                words["at"] = w.at(first.frame)
            elif block is not None and block != late.activity.frame:
                words["at"] = f"{w.at(block)}, now{w.at(late.activity.frame)},"
            limit = of_limit(first.frame) if first and RANK_ZERO_FIRST.search(first.test) else None
            fixes = (limit, "share") if limit else None
            found = found_late(s, late, 0.92, words, say="first" if first else "late", fixes=fixes)
            yield replace(found, location=block) if block else found


def _waited_for_rank0(s: Situation) -> Iterator[Found]:
    """Ranks that were interrupted, or gave up, while they waited for what rank 0 does first."""
    waits = [e for e in errors_of(s) if e.error.type.endswith("KeyboardInterrupt") or is_timeout(e.error)]
    first = [e for e in s.events.of("python.rank0_first") if any(is_line_of(x, e) for x in waits)]
    stacks = [d for d in doings_of(s) if any(RANK_ZERO_FIRST.search(f.function) for f in d.frames)]
    ranks = {*(r for d in stacks for r in d.ranks), *(e.rank for e in first if e.rank is not None)}
    if not (stacks or first) or 0 in ranks or first_exception(s) is not None:
        return
    function = (
        first[0]["function"]
        if first
        else next(f.function for f in stacks[0].frames if RANK_ZERO_FIRST.search(f.function))
    )
    words = {"function": function, "victims": "the other ranks", "work": "what rank 0 does first"}
    evidence = (*quote(first), *map(w.stack_of, stacks[:3]))
    yield Found(0.82, (0,), evidence, words, say="log", victims=tuple(sorted(ranks)))


def _came_too_late(s: Situation) -> Iterator[Found]:
    """Ranks that came to the call in the end, behind the limit of those that waited there."""
    late = too_late(s)
    if late is None:
        return
    frame = late.work or w.own_line(late.call.frames or ())
    words = {
        "who": w.name_ranks(late.ranks), "victims": w.name_ranks(late.waiting), "at": w.at(late.work), "seconds": f"{late.waited_s:.0f}",
        "call": f"{w.name_call(late.call)} #{late.call.seq} of {late.call.group}",
        "test": f" (`if {late.condition.text}`)" if late.condition else "", "work": f"that{w.at(late.work)}",
    }  # fmt: skip
    seen = EvidenceLine(f"rank {late.ranks[0]} calls", f"{words['call']}, when the others had given it up")
    evidence = (seen, *w.code_line(frame, f"rank {late.ranks[0]} source"))
    yield Found(
        0.9 if late.work else 0.8,
        late.ranks,
        evidence,
        words,
        "too late",
        victims=late.waiting,
        **w.at_call(late.call, frame),
    )


@rule("rank-stuck-in-user-code")
def rank_stuck_in_user_code(s: Situation) -> Iterator[Found]:
    """Each late rank whose stack is in its own code, live or by stacks in a log."""
    yield from _away_by_stacks(s)
    if s.divergence is not None or s.primary_failure is not None or not s.judges_waits or destroyed_before(s):
        return
    silent = silent_ranks(
        reports_in(s.events, s.case.log)
    )  # a process that is stopped, or gone since its stack was taken
    for late in s.late:
        never_came = late.edge.kind in ("rendezvous", "new_group") and late.rank not in s.case.ranks
        if never_came or late.rank in silent or late.edge.kind == "rendezvous" or late.activity.kind not in _AT_WORK:
            continue
        if not works_alone(s, late) or waits_idly(s, late):
            if (given := by_given_work(s, late)) is not None:
                yield given
                continue
            late = _in_its_loop(s, late)
            kind, told = late.activity.kind, remedy_of(s, late)
            error = None if told or late.activity.is_polled else swallowed_by(s, (late.rank,))
            if error is not None and led_away(s, late.rank, error):
                continue
            if (meeting := meets_alone(s, late)) is not None:
                fixes = fixes_of(late.activity.frame, meeting.condition, f"rank {late.rank}")
                yield found_late(s, late, 0.9, meeting.words, say="meets", fixes=fixes, cause="code-divergence")
                continue
            words = {"awaits": _awaits(s, late), "taken": w.place(late.activity.frame), "holder": holder_of(s, late)}
            helps: tuple[str | Fix, ...] = (told,) if told else remedies(s, late)
            yield found_late(s, late, 0.88, words, say=kind, fixes=(*helps, "only delays"))


def _in_its_loop(s: Situation, late: LateRank) -> LateRank:
    """Of a rank that is busy in a function which a loop without a count calls: it stands in that loop, wherever each look finds it."""
    stack = stack_of(s, late) if late.activity.kind == "spinning" else None
    head = head_of_unbounded(stack.frames) if stack is not None else None
    return late if head is None else replace(late, activity=late.activity._replace(frame=head))


def _awaits(s: Situation, late: LateRank) -> str:
    """What the rank waits for; of the lock on a file, who has it."""
    holder = holder_of(s, late)
    if holder is None:
        return late.activity.awaits
    own = next((e.what for e in s.waits.edges_of(holder) if late.rank in e.targets), "")
    where = f" in {own}" if own else ""
    return f"{late.activity.awaits}, which rank {holder} {both('holds')}{where},"


def _away_by_stacks(s: Situation) -> Iterator[Found]:
    """Pasted stacks that show named ranks in a collective and one elsewhere, or a guard against a hang that was lost."""
    doings = doings_of(s)
    # A driver waits for its workers, of which those that are done wait for their next task.
    has_driver = any(is_ray_driver(d.frames) for d in doings if not d.ranks)
    away = [d for d in doings if d.kind in ("lock", "user") and d.ranks and d.caller is not None]
    waiting = [d for d in doings if d.ranks and (d.kind == "collective" or (d.kind == "idle" and has_driver))]
    doings = tuple(d for d in doings if d.ranks or not has_driver)
    lost = _lost_alarm(s)
    if len({_place(d) for d in away}) == 1 and len(away) + len(waiting) == len(doings) and waiting:
        ranks, frame = tuple(sorted({r for d in away for r in d.ranks})), away[0].caller
        evidence, confidence, say = tuple(map(w.stack_of, (*away[:3], *waiting[:3]))), 0.82, f"{away[0].kind}_by_stacks"
    elif lost and not doings:
        ranks, frame, evidence, confidence, say = _silent_rank(s), None, quote(lost), 0.62, "alarm"
    else:
        return
    peers = w.name_ranks(sorted({r for d in waiting for r in d.ranks})) if waiting else ""
    who, idle = name_or(ranks, "a rank"), any(d.kind == "idle" for d in waiting)
    words = {
        "who": who,
        "at": w.at(frame),
        "peers": peers,
        "are": w.verb(ranks or (0,), "⟨is|was⟩ in its", "⟨are|were⟩ in their"),
        "stand": f"wait for the next task of their driver, which waits for {who}"
        if idle
        else f"wait in a collective, to which {who} did not come",
    }
    yield Found(confidence, ranks, evidence, words, say, ("bound anything", "no timeout"), location=frame)


def _place(d: Doing) -> tuple[int, ...] | tuple[str, str]:
    """What several ranks have in common that are away together: their kind, and the function of the program. A lock is each rank's own."""
    return d.ranks if d.kind == "lock" or d.caller is None else (d.caller.file, d.caller.function)


def _lost_alarm(s: Situation) -> Sequence[LogEvent]:
    """An ignored TimeoutError, and the timeout of a collective after it."""
    lines = s.events.of("python.error_line", "python.swallowed")
    pairs = [
        (a, b)
        for a, b in pairwise(lines)
        if a.kind == "python.swallowed" and b["type"].endswith("TimeoutError") and b.order - a.order < _MOST_LINES
    ]
    hung = next((e for e in s.events if pairs and e.says == "hang" and e.order > pairs[0][1].order), None)
    return (*pairs[0], hung) if hung is not None and first_exception(s) is None else ()


def _silent_rank(s: Situation) -> tuple[int, ...]:
    """The one rank of the world whose watchdog said nothing, where the sizes of an all-gather tell the world."""
    ratios = {
        t.numel_out // t.numel_in
        for t in s.watchdogs.timed_out
        if "ALLGATHER" in t.op and t.numel_in and t.numel_out and t.numel_out % t.numel_in == 0
    }
    silent = set(range(min(ratios, default=0))) - set(s.watchdogs.ranks)
    return tuple(silent) if len(ratios) == 1 and len(silent) == 1 else ()


@rule("slower-than-others")
def slower_than_others(s: Situation) -> Found | None:
    """The ranks that still counted their work when the wait of others, which had done the same, ran out."""
    lines = [e for e in errors_of(s) if is_timeout(e.error)]
    waited = [e.order for e in s.events if e.says == "hang"] + [e.order for e in lines]
    if not waited or first_exception(s) is not None:
        return None
    ranks = {*s.watchdogs.ranks, *(e.rank for e in lines if e.rank is not None)}
    work = slower_at_work(s, ranks, min(waited))
    if work is None:
        return None
    slow, others = tuple(sorted(work.slow)), tuple(sorted(work.finished))
    least = min(work.slow.values(), key=lambda count: count.done)
    words = {"who": w.name_ranks(slow), "were": w.verb(slow, "⟨is|was⟩", "⟨are|were⟩"), "others": w.name_ranks(others)}
    words |= {"done": str(least.done), "total": str(least.total), "times": f"{work.times:.1f}" if work.times else ""}
    said = [*((r, work.slow[r].line.line) for r in slow[:3]), *((r, work.finished[r].line) for r in others[:3])]
    evidence = [w.log_line(f"rank {r}", line) for r, line in said]
    culprits = slow if len(slow) <= len(others) else ()
    say = "paces" if work.times else OTHERWISE
    return Found(0.85 if work.times else 0.72, culprits, evidence, words, f"/{say}", victims=others)


@rule("late-in-a-phase")
def waited_for_in_a_phase(s: Situation) -> Found | None:
    """The rank that takes long for one phase of its steps, where the job goes on and the ranks print their times."""
    late = None if s.is_hang or s.is_crash or s.primary_failure is not None else late_in_a_phase(s)
    if late is None:
        return None
    words = {"rank": late.rank, "phase": late.phase, "waiting": late.waiting, "own": f"{late.own_s * 1000:.0f}"}
    words |= {"others": f"{late.others_s * 1000:.0f}", "longer": f"{late.longer_s * 1000:.0f}"}
    mine = [x for x in late.lines if x.rank == late.rank]
    return Found(0.86, (late.rank,), quote_own([*mine, *(x for x in late.lines if x.rank != late.rank)][:4]), words)


@rule("straggler", needs=("calls",))
def straggler(s: Situation) -> Found | None:
    """The rank that costs most, in a job that neither hung nor crashed."""
    if s.is_hang or s.is_crash or not s.stragglers:
        return None
    late = s.stragglers[0]
    words = {
        "rank": late.rank,
        "share": f"{late.last_share:.0%}",
        "group": late.group,
        "lost": f"{late.lost_s:.1f}",
        "span": f"{late.span_s:.1f}",
        "median": f"{late.median_lateness_s * 1000:.0f}",
        "first": f"{late.pace.first_s * 1000:.0f}",
        "last": f"{late.pace.last_s * 1000:.0f}",
        "every": late.pace.every,
    }
    seen = f"last in {late.last_share:.0%} of late positions, {late.lost_s:.2f} s lost in {late.span_s:.2f} s"
    evidence, group = (EvidenceLine("arrival times", seen),), w.group_of(late.group)
    say = f"/{late.pace.kind}"
    return Found(0.85, (late.rank,), evidence, words, say=say, group=group)
