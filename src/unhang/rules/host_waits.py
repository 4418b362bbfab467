"""What ends a wait of a rank that waits for no other rank, where the source shows who would end it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from unhang.analyze.activity import DATABASE, PAUSE, RESULT_OF_RAY
from unhang.analyze.host_waits import (
    actor_circle,
    ended_task,
    feeds,
    forked_lock,
    full_queue,
    named_actor,
    not_released,
    own_loop,
    puts,
    queue_at,
    read_later,
    unanswered,
    unread_errors,
    writes_to_child,
)
from unhang.analyze.locks import (
    Crosswise,
    HeldTwice,
    blocks_at,
    crosswise,
    held_by,
    held_by_parent,
    held_twice,
    kept_block,
    locked_above,
    lost_notice,
)
from unhang.analyze.outside_waits import (
    asks_at,
    asks_for_pauses,
    exception_not_sent,
    forked_torch,
    left_barrier,
    left_stream,
    lost_worker,
    open_transaction,
    opens_fifo,
    timer_left_on,
    tries_for_ever,
    unbounded,
    uncommitted,
    writes_back,
)
from unhang.analyze.own_threads import forked_place, own_pool
from unhang.analyze.polling import asks_database, name_by_hash
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.source import endless_loop, loop_around
from unhang.analyze.trees import line_text
from unhang.model import Fix, Frame, RankEvidence, ThreadStack, user_frames
from unhang.model.findings import LIMIT
from unhang.rules import wording as w
from unhang.rules.base import Found
from unhang.rules.failure import FirstException, found_at_first
from unhang.rules.known_waits import Remedy, end_the_thread, known_repairs, of_threads, waits_for_work
from unhang.rules.late import OF_A_PROCESS, children_of, driver, holder_of, stack_of

_ASYNC = "its tasks"
_OF_A_LOCK = ("a lock", "a lock file", "an event or condition", _ASYNC)


def remedy_of(s: Situation, late: LateRank) -> Remedy | None:
    """The change at the place that keeps the rank; None where the source does not show it for certain."""
    known = list(known_repairs(s, late))
    limits = (fix for fix in known if fix.kind == LIMIT)
    return next(chain((Remedy(f) for f in known if f.kind != LIMIT), _remedies(s, late), map(Remedy, limits)), None)


def _remedies(s: Situation, late: LateRank) -> Iterator[Remedy]:
    frame, awaits, evidence = late.activity.frame, late.activity.awaits, s.case.ranks.get(late.rank)
    if frame is None or evidence is None:
        return
    words: dict[str, object]
    yield from _of_locks(s, late, frame, evidence)
    yield from _of_outside(s, late, frame, evidence)
    yield from of_threads(late, frame, evidence)
    others = [t for t in evidence.own_stacks if not t.is_main]
    if awaits == "a thread that does not end" and (full := full_queue(frame, others)):
        words = {"join": w.spot(full.join), "put": w.spot(full.put), "thread": full.thread, "queue": full.queue}
        yield Remedy("empty the queue", words)
    if awaits == "the result of another thread" and (gone := ended_task(frame, evidence.tasks)):
        words = {"made": f"{w.base_name(gone.path)}:{gone.made}", "task": gone.task, "coroutine": gone.coroutine}
        yield Remedy("ask the task", {**words, "queue": gone.queue, "spot": w.spot(frame)})
    if awaits == "the result of another thread" and (own := own_loop([*others, *filter(None, [evidence.main_stack])])):
        words = {"waits": w.spot(own.waits), "calls": w.spot(own.calls), "plain": own.plain}
        yield Remedy("not in its own loop", {**words, "text": line_text(own.calls.file, own.calls.line)})
    if nested := own_pool([t for t in others if waits_for_work(t)]):
        words = {
            "submits": w.spot(nested.submits),
            "waits": w.spot(nested.waits),
            "pool": nested.pool,
            "made": nested.made,
        }
        yield Remedy("a pool of its own", {**words, "function": nested.function})
    is_of_input = evidence.state is not None and bool(evidence.state.child_asks) and not evidence.state.child_writes
    if awaits == "a child process" and is_of_input and writes_to_child(frame.file):
        yield Remedy("end of input", {"spot": w.spot(frame)})
    is_full = evidence.state is not None and evidence.state.child_writes
    beside = [t for r, e in s.case.ranks.items() if r != late.rank for t in children_of(e)]
    if awaits == "a pipe" and (question := asks_at(children_of(evidence), beside)):
        yield Remedy("no question", {"asks": w.spot(question), "spot": w.spot(frame)})
    if awaits == "a pipe" and is_full and (line := unread_errors(frame.file)):
        yield Remedy("no pipe for errors", {"starts": f"{w.base_name(frame.file)}:{line}"})
    if awaits == "a child process" and is_full and any(map(feeds, evidence.stacks)) and (later := read_later(frame)):
        yield Remedy("read before", {"join": w.spot(later.join), "get": later.get, "queue": later.queue})
    place = driver(s)
    taker = next((t for t in evidence.stacks if t.process_id not in (None, evidence.identity.pid) and puts(t)), None)
    if awaits == "a full queue" and taker is not None and (name := queue_at(frame)):
        yield Remedy(
            "skip a full queue", {"queue": name, "spot": w.spot(frame), "child": w.spot(user_frames(taker.frames)[0])}
        )
    if awaits == "a full queue" and place is not None and (later := read_later(place)):
        words = {"join": w.spot(later.join), "get": later.get, "queue": later.queue, "statement": later.statement}
        yield Remedy("read while they run" if later.spawn else "read before", {**words, "spawn": later.spawn})
    if awaits in _OF_A_LOCK and (kept := not_released(frame.file, frame.line)):
        work = "\n".join(f"    {line}" for line in kept.work.splitlines())
        words = {"spot": f"{w.base_name(kept.path)}:{kept.released}", "what": kept.what, "work": work}
        yield Remedy("release always", {**words, "since": kept.taken})
    if awaits in OF_A_PROCESS and (silent := unanswered([*s.case.launcher_stacks, *children_of(evidence)])):
        spot = f"{w.base_name(silent.head.file)}:{silent.way.leaves_at}"
        yield Remedy("answer each", {"spot": spot, "test": silent.way.text, "answer": silent.answer})
    if named := name_by_hash(frame):
        yield Remedy("same name", {"spot": w.spot(named), "look": w.spot(frame)})
    if circle := actor_circle(frame):
        words = {"wait": w.spot(circle.wait), "back": w.spot(circle.back), "asked": circle.asked, "actor": circle.actor}
        yield Remedy(
            "second thread", {**words, "decorator": _with_threads(circle.decorator), "class_at": w.spot(circle.at)}
        )


def _of_locks(s: Situation, late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Remedy]:
    """Of a wait for a lock, a place or a condition."""
    awaits = late.activity.awaits
    stack = stack_of(s, late)
    ways = [t.frames for t in evidence.tasks] if evidence.tasks else [stack.frames] if stack else []
    words: dict[str, object]
    if awaits in _OF_A_LOCK and (twice := held_twice(ways)):
        keyword = "async with" if evidence.tasks else "with"
        words = {"function": twice.inner.function, "keyword": keyword, "signal": evidence.in_handler, **_held(twice)}
        yield Remedy("take none in a handler" if evidence.in_handler else "take it once", words)
    if awaits in _OF_A_LOCK and (two := crosswise(evidence.own_stacks)):
        yield _in_one_order(two)
    if awaits in _OF_A_LOCK and (own_place := held_by_parent(evidence.tasks)):
        yield Remedy("leave the place", _held(own_place))
    if awaits == "an event or condition" and (told := lost_notice(frame)):
        yield Remedy("wait for what is told", {"spot": w.spot(frame), "what": told.what, "holds": told.holds})
    holder = s.case.ranks.get(-1 if (rank := holder_of(s, late)) is None else rank)
    if holder is not None and holder.main_stack and (block := kept_block(holder.main_stack.frames, frame)):
        words = {"stands": w.spot(block[0]), "since": block[1], "what": block[2], "holder": holder.identity.rank}
        yield Remedy("leave the lock first", words)
    for rank in late.victims if awaits == "a lock file" else ():  # the kernel does not say who has it
        block = kept_block(s.case.ranks[rank].main_frames, frame) if rank in s.case.ranks else None
        if block is not None and block[2] in {what for b in blocks_at(frame) for what in held_by(b)}:
            words = {"stands": w.spot(block[0]), "since": block[1], "what": block[2], "holder": rank}
            yield Remedy("leave the lock first", words)
    is_own = stack is not None and stack.kernel is not None and stack.kernel.holder == evidence.identity.pid
    if is_own and stack is not None and (own_lock := locked_above(stack.frames)):
        words = {"spot": w.spot(frame), "outer": w.spot(own_lock[0]), "since": own_lock[1]}
        yield Remedy("lock the file once", words)


def _of_outside(s: Situation, late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Remedy]:
    """Of a wait for what other processes have or do."""
    awaits, spot, children = late.activity.awaits, w.spot(frame), children_of(evidence)
    words: dict[str, object]
    if awaits == "room in a socket" and (writes := writes_back(children)):
        sends = next((f for f in user_frames(evidence.main_frames) if loop_around(f.file, f.line) is not None), frame)
        yield Remedy("read between", {"sends": w.spot(sends), "child": w.spot(writes)})
    if awaits == DATABASE:
        yield from _of_database(s, late, frame)
    if awaits == "the other end of a FIFO" and (fifo := opens_fifo(frame)):
        words = {"spot": spot, "path": fifo.path, "how": f", {fifo.how}" if fifo.how else "", "name": fifo.name}
        yield Remedy("no wait for a reader", {**words, "as": f"with {fifo.name}:" if fifo.is_block else ""})
    stack = stack_of(s, late)
    if inherited := fresh_lock(forked_place(children)):
        yield Remedy("fresh lock", inherited)
    if child := forked_torch(children):
        yield Remedy("one thread in the child", {"child": w.spot(child)})
    if stack is not None and (call := lost_worker(stack, children)):
        yield Remedy("a pool that notices", {"spot": spot, "call": call})
    if awaits == RESULT_OF_RAY and (left := left_stream(frame)):
        words = {"leaves": f"{w.base_name(frame.file)}:{left.leaves}", "stream": left.stream}
        yield Remedy("read the stream", {**words, "actor": left.actor, "spot": spot})
    if awaits == RESULT_OF_RAY and (endless := tries_for_ever(frame)):
        decorator = endless.decorator.replace("max_task_retries=-1", "max_task_retries=2")
        words = {"class_at": f"{w.base_name(endless.path)}:{endless.at}", "actor": endless.actor, "spot": spot}
        yield Remedy("limit the tries", {**words, "decorator": decorator})
    if late.activity.is_polled and (named := named_actor(frame)):
        yield Remedy("a lifetime", {"made": w.spot(named[0]), "call": named[1], "spot": spot})
    if awaits == PAUSE and (policy := asks_for_pauses(frame.file)):
        yield Remedy("a pause of its own", {"policy": f"{w.base_name(policy[0])}:{policy[1]}", "spot": spot})
    if awaits == "an event or condition" and _is_barrier(stack) and (gone := left_barrier(frame)):
        words = {
            "leaves": f"{w.base_name(frame.file)}:{gone.leaves}",
            "function": gone.function,
            "barrier": gone.barrier,
        }
        yield Remedy("stay at the barrier", {**words, "meetings": "; ".join(gone.meetings)})
    if late.activity.kind == "spinning" and (loop := unbounded(frame)):
        words = {"loop_at": f"{w.base_name(frame.file)}:{loop.line}", "was": loop.was, "head": loop.head}
        yield Remedy("bound the rounds", {**words, "after": f"\n{loop.after}" if loop.after else ""})


def _is_barrier(stack: ThreadStack | None) -> bool:
    return stack is not None and any(f.function == "_wait" and f.file.endswith("/threading.py") for f in stack.frames)


def _of_database(s: Situation, late: LateRank, frame: Frame) -> Iterator[Remedy]:
    """Of a wait for the lock of a database: who may have it, one that waits for this rank."""
    words: dict[str, object]
    for rank in late.victims:
        evidence = s.case.ranks.get(rank)
        if evidence is not None and (held := open_transaction(evidence.main_frames, frame)):
            words = {"stands": w.spot(held.stands), "since": held.since, "what": held.what, "holder": rank}
            yield Remedy("a short transaction", words)
    if lines := uncommitted(frame.file):
        spots = ", ".join(f"{w.base_name(frame.file)}:{line}" for line in lines[:3])
        yield Remedy("commit at once", {"writes": spots, "base": asks_database(frame.file, frame.line)})


def _held(held: HeldTwice) -> dict[str, object]:
    """The words on what is held by who waits for it."""
    return {"taken_at": w.spot(held.inner), "outer": w.spot(held.outer), "since": held.since, "what": held.what}


def _in_one_order(two: Crosswise) -> Remedy:
    """The thread that may change at the least cost: one that has no more to do with its first lock, or that can name both."""
    sides = (two, two.turned)
    one = next((x for x in sides if x.may_leave_first), None)
    name = "leave the first lock" if one else "one order of locks"
    one = one or next((x for x in reversed(sides) if x.has_both_names), two)
    words = {"stands": w.spot(one.mine.at), "since": one.mine.since, "first": one.mine.text, "want": one.want}
    words |= {"function": one.mine.at.function, "wants": w.spot(one.wants), "theirs": w.spot(one.their_wants)}
    return Remedy(
        name, {**words, "taken": f"{w.base_name(one.mine.at.file)}:{one.mine.since}", "their": one.their_want}
    )


def _with_threads(decorator: str) -> str:
    """The decorator of an actor that runs a second method while the first one waits."""
    return f"{decorator[:-1]}, max_concurrency=2)" if decorator.endswith(")") else f"{decorator}(max_concurrency=2)"


def fresh_lock(place: Frame | None) -> Mapping[str, object]:
    """The words of the fix for a loader's worker that waits for a lock which it got by the fork; nothing where it waits for another thing."""
    found = forked_lock(place) if place is not None else None
    if found is None:
        return {}
    owner, _, name = found.what.rpartition(".")
    renew = (
        f'lambda: setattr({owner}, "{name}", {found.made})'
        if owner
        else f"lambda: globals().update({name}={found.made})"
    )
    return {"made_at": w.spot(found.at), "what": found.what, "renew": renew}


def bound_item(place: Frame | None) -> Mapping[str, object]:
    """The words of the fix for a loader's worker that is in a loop without a bound; nothing where it is not."""
    loop = endless_loop(place) if place is not None else None
    if place is None or loop is None:
        return {}
    return {"loop_at": f"{w.base_name(place.file)}:{loop.lineno}", "item_of": place.function}


def no_pipe(place: Frame | None) -> Mapping[str, object]:
    """The words of the fix for a loader's worker that reads from a process whose errors nobody reads; nothing where it does not."""
    line = unread_errors(place.file) if place is not None and "stdout" in line_text(place.file, place.line) else 0
    return {"starts": f"{w.base_name(place.file)}:{line}"} if place is not None and line else {}


def timer_off(s: Situation) -> Mapping[str, object]:
    """The words of the fix for a timer of the program's own that runs on when its handler is gone; nothing where the source shows none."""
    stacks = (frames for e in s.case.ranks.values() for frames in (e.main_frames, e.error.frames if e.error else ()))
    files = {f.file: None for frames in stacks for f in user_frames(frames)}
    found = next((t for path in files if (t := timer_left_on(path))), None)
    return {"restores": f"{w.base_name(found[0])}:{found[1]}", "off": found[2]} if found else {}


def lost_exception(s: Situation, first: FirstException) -> Found | None:
    """What is known of an exception that a rank could not receive from a process of its own, or after which its process cannot end."""
    kept = s.case.ranks.get(first.ranks[0]) if len(first.ranks) == 1 else None
    if kept is not None and (fix := end_the_thread(kept)) is not None:
        words = {"type": first.error.type, "head": first.head}
        return found_at_first(s, first, 0.9, words, say="raised", fixes=(fix, "mend", "no timeout"))
    beside = [f for e in s.case.ranks.values() for f in user_frames(e.main_frames)[:1]]
    lost = exception_not_sent(first.error, beside)
    if lost is None:
        return None
    words = {
        "name": lost.at.function,
        "class_at": w.spot(lost.at),
        "given": lost.given,
        "head": first.head,
        "at": w.at(lost.at),
    }
    found = found_at_first(s, first, 0.95, words, say="lost", fixes=("can be sent", "no timeout"))
    return replace(found, location=lost.at)


def killed_by_somebody(s: Situation, first: FirstException) -> Found | None:
    """What is known of a loader's worker that was killed while the kernel counted no process that it killed for want of memory."""
    states = [e.state for r in first.ranks if (e := s.case.ranks.get(r)) is not None and e.state is not None]
    if not states or any(state.oom_kills != 0 for state in states):
        return None
    fix = Fix(
        title="Find what killed the worker: a guard of the program, a limit (RLIMIT_CPU), or somebody",
        advice="unhang shows the pid; look for os.kill, Process.kill and setrlimit in the program, and for limits of the node; a worker that may be "
        "killed has to be noticed and started anew by the loop that reads it",
        verify="unhang run -- <the same command>: outcome clean",
        undo="nothing is changed",
    )
    return found_at_first(s, first, 0.75, say="not counted", fixes=(fix,), cause="rank-crashed-earlier")
