"""Rules on ranks that leave the way of the others: their program ends while others still need them, or an exception takes them past a call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from unhang.analyze.calls.framework_loops import asks_to_end
from unhang.analyze.calls.handled import WITH, caught_elsewhere, in_its_handler, leaves_by, led_away, swallowed_by
from unhang.analyze.failures import Failure, early_leavers
from unhang.analyze.lines.first_errors import SeenError, errors_of, first_error, is_log_only, ranks_of
from unhang.analyze.program.callpath import innermost, user_path
from unhang.analyze.program.sides import started_ns
from unhang.analyze.program.source import Condition, around, ends_block, handles_signal, surroundings
from unhang.analyze.program.trees import line_text
from unhang.analyze.situation import Situation
from unhang.analyze.waits import leaving
from unhang.analyze.waits.order import left_out
from unhang.analyze.waits.overtaking import Overtaking
from unhang.model import (
    EvidenceLine,
    Fix,
    Frame,
    PendingCall,
    ProcessExit,
    RaisedError,
    RankEvidence,
    WaitEdge,
    user_frames,
)
from unhang.read.logs.attempts import killed_at_work
from unhang.rules import wording as w
from unhang.rules.advice import EVERY_RANK_CALLS, at_test, decided_together, deciding, fixes_of, gate_of, said_plainly
from unhang.rules.base import Found, rule
from unhang.rules.failure import found_at_failures, left_before, name_or
from unhang.rules.framework_advice import of_asked_ahead, of_stop
from unhang.rules.log_lines import found_in
from unhang.rules.remedies import of_handled
from unhang.rules.repairs import of_not_finite

_CLOSED = re.compile(r"Connection closed by peer|Connection reset by peer|Socket closed")
_TRANSFERS = ("recv", "send", "irecv", "isend", "recv_object_list", "send_object_list", "batch_isend_irecv")
_PEER = re.compile(r"\b(?:i?recv|i?send)\([^,()]+,\s*(?:(?:src|dst|source|dest)\s*=\s*)?(?P<peer>\d{1,6})\b")
_NO_END = ("ending.mpirun_exit", "oom.loading", "oom.host_use", "cuda.setting")
_LONG_NS = 60 * 1_000_000_000
# What says that a process failed, or that the job was ended: then a closed connection is its echo.
_ENDS = ("ending.", "elastic.", "oom.", "cuda.", "python.fatal", "loader.", "watchdog.")


@rule("rank-exited-early")
def rank_exited_early(s: Situation) -> Found | None:
    """The first rank that left, if anyone needed it."""
    if is_log_only(s):
        return _closed_its_connection(s) or _killed_behind_it(s) or _left_at_the_end(s) or _left_horovod(s)
    if (early := leaving.destroyed_before(s)) is not None:
        return _destroyed(s, *early)
    leaver = next((e for e in early_leavers(s.case) if _was_needed(s, e)), None)
    first = s.primary_failure
    if leaver is None or s.divergence is not None or _ended_well(s):
        return None
    if first is not None and first.rank != leaver.rank and not left_before(s, first):
        return None
    before = leaving.ended_before(s)
    is_other = leaving.made_other_rounds(s) or leaving.ended_after_error(s) is not None
    if is_other or (before is not None and before.shows_a_call):
        return None
    end = leaver.exit
    assert end is not None
    failure = Failure(leaver.rank, end.kind, end.time_ns, None, end, secondary=False)
    is_end, code = end.kind == "exit", "" if end.code is None else str(end.code)
    how = f"came to the end of its program{code and f' (exit code {code})'}" if is_end else f"called {end.kind}({code})"
    is_sure, words = leaving.lead_of_waiting(s, leaver) > 0, {"how": how, "missed": ""}
    awaits = {e.kind for e in s.waits.edges if leaver.rank in e.targets}
    say, fixes = ("never joined", ("join",)) if awaits == {"rendezvous"} else ("left", ("together", "transfers"))
    found = found_at_failures(s, (failure,), 0.94 if is_sure else 0.6, words, say=say, fixes=fixes)
    if before is not None:
        found = _with_the_call(found, before, is_sure)
    gate = _gate_of(s, end)
    begins = of_not_finite(w.own_line(end.frames), gate.test) if gate is not None else ()
    return replace(found, condition=gate_of(gate), fixes=(*begins, *(found.fixes or ())))


def _gate_of(s: Situation, end: ProcessExit) -> Condition | None:
    """What decides that the rank ends, where the main way of the program asks it: no thread, and no handler of a signal."""
    place = w.own_line(end.frames)
    if place is None or handles_signal(place) or any(f.file.endswith("/threading.py") for f in end.frames):
        return None
    gate = deciding(around(place, started_ns(s.case)).conditions)
    return gate if gate is not None and gate.suspicion else None


def _ended_well(s: Situation) -> bool:
    """Whether the job ended with 0, did not hang, and nobody raised: a driver ends its workers as it likes."""
    return s.case.job.exit_code == 0 and s.case.hang is None and not any(f.error for f in s.failures)


def _destroyed(s: Situation, rank: int, call: PendingCall, edge: WaitEdge) -> Found:
    """A rank that gave up the group in which another one still waits for it."""
    frame = next(iter(call.frames), None)
    condition = next((c for f in call.frames for c in around(f).conditions if c.depends_on_rank), None)
    only = f", under `{condition.text}`" if condition is not None else ""
    words = {"rank": rank, "line": w.place(frame), "only": only, "waiter": edge.waiter, "what": edge.what}
    evidence = (
        EvidenceLine(f"rank {rank} destroy_process_group", str(frame), frame.line if frame else None),
        w.waiting_line(edge),
    )
    return Found(
        0.94,
        (rank,),
        (*evidence, *w.stack_lines(s.case.ranks.get(rank), 4)),
        words,
        "destroyed",
        ("destroy last",),
        location=frame,
        group=w.group_named(edge.group),
        condition=gate_of(condition),
    )


def _closed_its_connection(s: Situation) -> Found | None:
    """A receive in a log lost its sender, or a send its receiver, and no process is known to have failed."""
    errors = errors_of(s)
    lost = [e for e in errors if _CLOSED.search(e.text) and any(f.function in _TRANSFERS for f in e.frames[:6])]
    others = [e for e in errors if e not in lost and e.kind != "echo"]
    has_ended = s.events.has(*_ENDS) or any(e.exit and e.exit.code for e in s.case.ranks.values())
    if not lost or others or s.case.out_of_sight or has_ended:
        return None
    peers = tuple(sorted({p for e in lost if (p := _peer_in_source(s, e)) is not None}))
    if not peers:  # such a log may be that of one rank alone
        return None
    return Found(
        0.65,
        peers,
        (EvidenceLine("log", lost[0].text[:300], lost[0].source.line),),
        {"who": name_or(peers, "a rank")},
        "closed",
        victims=tuple(sorted({e.rank for e in lost if e.rank is not None})),
        location=w.own_line(lost[0].frames),
    )


def _killed_behind_it(s: Situation) -> Found | None:
    """Processes that ended well, and others that the launcher had to kill long after: nothing failed, and no step was told between."""
    at_work = killed_at_work(list(s.events))
    left = [e for e in s.events.of("ending.succeeded") if e["left"]]
    if not at_work or s.failures or s.case.loose_errors or any(e.says for e in s.events):
        return None
    last, killed = left[-1], at_work[0]
    is_long = None not in (last.time_ns, killed.time_ns) and (killed.time_ns or 0) - (last.time_ns or 0) >= _LONG_NS
    if not is_long or any(e.is_progress and e.order > last.order for e in s.events):
        return None
    pids = sorted({e["left"] for e in left} | {e["pid"] for e in at_work}, key=int)  # in the order of their ranks
    is_all = len(pids) == s.case.job.world_size
    ranks = tuple(i for i, pid in enumerate(pids) if is_all and any(e["left"] == pid for e in left))
    words = {"who": name_or(ranks, "a rank"), "count": len(at_work)}
    return found_in(s, [*left[:3], *at_work[:3]], 0.8, ranks, words=words, say="killed", fixes=("together",))


def _left_at_the_end(s: Situation) -> Found | None:
    """The one rank whose wait ran out behind the end of the training, where its launcher, on one node, had no other process left to end."""
    waits, ended = s.watchdogs.timed_out, s.events.first("ending.finished")
    killed = s.events.has("elastic.closing_signal", "ending.killing", "ending.closing")
    told = {*s.watchdogs.seen, *s.watchdogs.only_observed}
    alone = len(waits) == 1 < (s.case.job.world_size or 0) and told <= {waits[0].rank}
    if ended is None or not alone or killed or not s.events.has("elastic.worker_failed") or s.case.out_of_sight:
        return None
    wait, codes = waits[0], [e.exit.code for e in s.case.ranks.values() if e.exit is not None and e.exit.code]
    later = [e for e in s.events.of("progress.step") if ended.order < e.order < wait.events[0].order]
    if later or len(codes) > 1 or first_error(s) is not None or wait.rank is None:
        return None
    words = {"who": w.name_ranks((wait.rank,)), "call": wait}
    return found_in(
        s, [ended, *wait.events[:1]], 0.75, (wait.rank,), words=words, say="alone", cause="code-divergence", fixes=(EVERY_RANK_CALLS,),
        collective={"op": wait.op, "seq": wait.seq},
    )  # fmt: skip


_OF_HOROVOD, _FAILED = (
    "Horovod has been shut down",
    ("ending.mpirun", "ending.killed", "ending.fatal_signal", "oom.", "cuda.", "shm.", "kernel."),
)


def _left_horovod(s: Situation) -> Found | None:
    """The one rank that did not raise what Horovod raises where a rank ended, and of which nothing tells that it failed: by its bar it was done."""
    errors = [e for e in errors_of(s) if e.error.frames]
    shut = [e for e in errors if _OF_HOROVOD in e.text]
    ranks = {r for e in shut for r in ranks_of(s, e)}
    gone = set(range(s.case.job.world_size or 0)) - ranks
    kinds = {e.kind for e in s.events}
    if (
        not ranks
        or len(gone) != 1
        or len(shut) != len(errors)
        or any(k.startswith(_FAILED) and k not in _NO_END for k in kinds)
    ):
        return None
    bars = [e for e in s.events.of("progress.bar") if e.rank in gone and e["done"] and e["done"] == e["total"]]
    words = {"who": w.name_ranks(tuple(gone)), "others": w.name_ranks(sorted(ranks))}
    shown = [*bars[-1:], *(e for e in s.events.of("python.error_line") if _OF_HOROVOD in e.text)][:3]
    is_done = bool(bars) and not any(e.rank in ranks and e["done"] == e["total"] for e in s.events.of("progress.bar"))
    say, cause = ("done", "uneven-inputs") if is_done else ("gone", "")
    return found_in(
        s, shown, 0.78 if is_done else 0.65, tuple(gone), words=words, say=say, cause=cause, fixes=("together",)
    )


def _with_the_call(found: Found, before: leaving.EndedBefore, is_sure: bool) -> Found:
    """With the call that the rank which ended lacks; what it does not tell is why."""
    who, path = w.name_ranks(before.waiting), user_path(before.call.frames)
    text = f" {who} {w.verb(before.waiting, 'waits', 'wait')} in {w.name_call(before.call)} #{before.call.seq}"
    text += f" of {w.place(path[-1])}" if path else ""
    guarded = [(f, c) for f in path for c in around(f).conditions if c.suspicion > 1]
    decide: Sequence[Fix] = (decided_together(*guarded[-1]),) if guarded else ()
    text += f", which runs only if {guarded[-1][1].text}" if guarded else ""
    text += (
        ": the rank that ended left it out once, or had fewer rounds to make."
        if is_sure
        else ": the rank that ended left a call out or ended too early, or its peer made one more."
    )
    stop = asks_to_end(before.call.frames or ()) if not guarded else None
    text += f" {w.place(stop)} asks the framework to stop, and what it decides by is the rank's own." if stop else ""
    location = found.location or stop or (guarded[-1][0] if guarded else innermost(path))
    lacks = f", without {w.name_call(before.call)} of {w.place(path[-1])}," if path and not found.location else ""
    words = {**found.words, "missed": text, "how": f"{found.words['how']}{lacks}"}
    together = (of_stop(stop) if stop else None) or "together"
    return replace(found, words=words, fixes=(*decide, together, "transfers"), location=location)


def _peer_in_source(s: Situation, error: SeenError) -> int | None:
    """The peer that the line of source in the traceback names: `dist.recv(x, 0)`."""
    lines = [x.text for x in s.case.log[max(0, error.order - 2) : error.order + 24]]
    found = [m for text in lines if (m := _PEER.search(text))]
    return int(found[0]["peer"]) if found else None


def _was_needed(s: Situation, leaver: RankEvidence) -> bool:
    """Whether a peer waits for the rank, or lost its connection after it had gone."""
    missed = [stuck for stuck in s.stuck if leaver.rank in stuck.missing]
    if missed and (
        leaving.lead_of_waiting(s, leaver) < 0 or any(leaving.made_as_often(s, leaver.rank, stuck) for stuck in missed)
    ):
        return False
    if any(leaver.rank in e.targets for e in s.waits.edges):
        return True
    time_ns = leaver.exit.time_ns if leaver.exit else 0
    return any(
        f.rank != leaver.rank and f.secondary and f.error is not None and f.time_ns >= time_ns for f in s.failures
    )


@rule("swallowed-exception")
def swallowed_exception(s: Situation) -> Found | None:
    """The odd or late rank handled an exception before."""
    if s.primary_failure is not None and s.primary_failure.kind == "exception":
        return None
    if (ended := leaving.ended_after_error(s)) is not None:
        return _went_on(s, ended[:1], ended[1], 0.95, has_ended=True)
    parted = leaving.parted_with_exception(s) or leaving.caught_in_circle(s)
    if parted is not None:
        return _holds(s, parted) if parted.is_held else _went_on(s, parted.ranks, parted.error, 0.85)
    ranks = s.divergence.odd if s.divergence else tuple(r.rank for r in s.late if r.activity.kind != "frozen")[:1]
    error = swallowed_by(s, ranks)
    if error is None:
        return None
    sure = 0.95 if s.divergence is not None else led_away(s, ranks[0], error)
    return _went_on(s, ranks, error, sure) if sure else None


def _holds(s: Situation, parted: leaving.Parted) -> Found:
    """The exception is still on its way: it waits in the block that it passes, where no peer comes."""
    ranks, error, d = parted.ranks, parted.error, s.divergence
    frame, held = user_frames(error.frames)[0], error.handler
    edge = next(iter(s.waits.edges_of(ranks[0])), None)
    words = {
        "who": w.name_ranks(ranks),
        "head": _head(error),
        "line": w.place(frame),
        "block": _block(held),
        "held": w.place(held),
        "lead": w.lead(held),
        "waits": w.verb(ranks, "waits", "wait"),
        "call": edge.what.split(" #")[0] if edge else "a call",
    }
    return Found(
        0.95,
        ranks,
        _handled(s, ranks, error),
        words,
        "holds",
        ("no call there",),
        cause="user-exception",
        **w.at_fork(d, frame),
    )


def _block(held: Frame | None) -> str:
    """What holds the exception."""
    if held is None:
        return "in a handler"
    if ends_block(held):
        return "at the end of a `with`" if line_text(held.file, held.line).startswith(WITH) else "in a `finally`"
    return "in an `except`" if surroundings(held.file, held.line).in_handler else "in a handler"


def _head(error: RaisedError) -> str:
    return f"{error.type}: {error.message.splitlines()[0] if error.message else ''}"[:140]


def _went_on(
    s: Situation, ranks: tuple[int, ...], error: RaisedError, confidence: float, has_ended: bool = False
) -> Found:
    frame, d = user_frames(error.frames)[0], s.divergence
    holder = next((f for f in reversed(d.odd_path if d else ()) if surroundings(f.file, f.line).in_handler), None)
    has_left = d is not None and d.seq < d.stuck_seq and not in_its_handler(s, ranks[0])
    waits_there = holder is not None and not has_left
    fixes, gate = (("no call there", "re-raise"), None) if waits_there else of_handled(s.case, error)
    words = {
        "who": w.name_ranks(ranks),
        "head": _head(error),
        "line": w.place(frame),
        "handler": w.place(error.handler),
        "lead": w.lead(error.handler),
        "held": w.place(holder),
        "leaves": leaves_by(error),
    }
    say = "ended" if has_ended else "waits in handler" if waits_there else "called in handler" if holder else "went on"
    caught = caught_elsewhere(error, frame) if say == "went on" else None
    return Found(
        confidence,
        ranks,
        _handled(s, ranks, error),
        words,
        "went on from there" if caught else say,
        fixes,
        cause="user-exception" if waits_there or has_ended else "",
        condition=gate_of(gate),
        **w.at_fork(d, caught or frame),
    )


def _handled(s: Situation, ranks: tuple[int, ...], error: RaisedError) -> Iterator[EvidenceLine]:
    yield EvidenceLine(f"rank {ranks[0]} handled exception", f"{error.type}: {error.message[:300]}")
    yield from w.frame_lines(f"rank {ranks[0]} traceback", error.frames, 4)
    if error.handler is not None:
        yield EvidenceLine(f"rank {ranks[0]} handler", str(error.handler), error.handler.line)
    if s.divergence is not None:
        d = s.divergence
        yield w.path_line(d.odd[0], f"#{d.seq} {w.name_call(d.odd_call)}", d.odd_path or user_path(d.odd_call.frames))
        yield w.path_line(d.reference[0], f"#{d.seq} {w.name_call(d.reference_call)}", d.reference_path)


@rule("call-left-out", needs=("ranks",))
def call_left_out(s: Situation) -> Iterator[Found]:
    """Each circle that ranks closed by going past a call."""
    for cycle in s.waits.cycles if s.divergence is None and s.judges_waits else ():
        if set(cycle) <= set(s.proven) and (found := left_out(s, cycle)):
            yield _went_past(s, found)


def _went_past(s: Situation, found: Sequence[Overtaking]) -> Found:
    culprits, first = tuple(sorted({o.rank for o in found})), found[0]
    call = (first.edge.kind, first.edge.group, first.edge.seq)
    is_shared = first.edge.kind == "collective"
    waits = [e for e in s.waits.edges if (e.kind, e.group, e.seq) == call] if is_shared else [first.edge]
    waiters = tuple(sorted({e.waiter for e in waits}))
    decisive = deciding(c for c in around(first.decided).conditions if c.suspicion)
    evidence = s.case.ranks.get(waiters[0])
    made = evidence.main_frames if evidence else ()
    mine = [e for r in culprits for e in s.waits.edges_of(r)[:1]]
    words = {
        "who": w.name_ranks(culprits),
        "call": first.edge.what,
        "line": w.place(first.passed),
        "waiters": w.name_ranks(waiters),
        "wait": w.verb(waiters, "waits", "wait"),
        "function": first.passed.function,
        "stand": w.verb(culprits, "stands", "stand"),
        "waits": "; ".join(f"rank {e.waiter} waits for {w.name_ranks(e.targets)} in {e.what}" for e in mine[:4]),
    }
    stacks = [
        line
        for e in (*mine[:2], *waits[:2])
        for line in (w.waiting_line(e), *w.stack_lines(s.case.ranks.get(e.waiter), 2))
    ]
    say, more = said_plainly(decisive, first.decided, culprits, waiters, first.edge.what.split(" ")[0], is_skipped=True)
    return Found(
        0.85,
        culprits,
        (*w.code_line(first.decided, f"rank {waiters[0]} source"), *stacks),
        {**words, "others": w.name_ranks(waiters), **more},
        say,
        fixes=fixes_of(first.decided, decisive, w.name_ranks(culprits), made, of_asked_ahead(made)),
        condition=gate_of(decisive),
        **w.at_wait(first.edge, at_test(first.decided, decisive)),
    )
