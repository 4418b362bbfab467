"""What ends a wait of a rank that waits for no other rank: by the tables, else by what the source shows of who would end it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from textwrap import indent
from typing import Any, NamedTuple

from unhang.analyze.activity import DATABASE, PAUSE, RESULT_OF_RAY
from unhang.analyze.program.callpath import is_same_function
from unhang.analyze.program.source import loop_around
from unhang.analyze.program.trees import line_text
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits import given_back, host_waits, locks, outside_waits, own_threads, polling, queues
from unhang.model import Fix, Frame, RankEvidence, ThreadStack, user_frames
from unhang.model.findings import LIMIT, LOOK
from unhang.rules import wording as w
from unhang.rules.base import AGAIN, card_of, edit, with_words
from unhang.rules.item_repairs import fresh_lock
from unhang.rules.known_repairs import known_repairs
from unhang.rules.late import OF_A_PROCESS, children_of, driver, holder_of, stack_of

_ASYNC = "its tasks"
_OF_A_LOCK = ("a lock", "a lock file", "an event or condition", _ASYNC)
_OF_POOLS = {
    "concurrent/futures/_base.py": ("result", "wait", "as_completed"),
    "multiprocessing/pool.py": ("get", "wait", "next"),
}


def _fix(name: str, found: NamedTuple | None = None, /, **words: object) -> Fix:
    """The card's fix of that name. Its words: what was found in the source, field by field, of frames the file and line; and `words`."""
    fields: dict[str, Any] = found._asdict() if found is not None else {}
    said = {n: w.spot(v) if isinstance(v, Frame) else v for n, v in fields.items()}
    return card_of("rank-stuck-in-user-code").fixes_for((name,), {**said, **words})[0]


def remedy_of(s: Situation, late: LateRank) -> Fix | None:
    """The change at the place that keeps the rank; None where the source does not show it for certain."""
    known, frame = list(known_repairs(s, late)), late.activity.frame
    limits = (fix for fix in known if fix.kind == LIMIT)
    fix = next(chain((fix for fix in known if fix.kind != LIMIT), _remedies(s, late), limits), None)
    return with_words(fix, {"spot": w.spot(frame)}) if fix is not None and frame is not None else fix


def _remedies(s: Situation, late: LateRank) -> Iterator[Fix]:
    frame, evidence = late.activity.frame, s.case.ranks.get(late.rank)
    if frame is None or evidence is None:
        return
    yield from _of_locks(s, late, frame, evidence)
    yield from _of_outside(s, late, frame, evidence)
    yield from _of_what_another_tells(s, late, frame, evidence)
    yield from _of_tasks_and_pools(late, frame, evidence)
    yield from _of_children(s, late, frame, evidence)
    if late.activity.is_polled and (kept := _kept_by_spinning(s, frame, evidence)):
        yield _given_back(kept)
    if late.activity.is_polled and (made := polling.made_on_one(frame)) and _have_left(s, late, frame):
        who, passed = w.verb(late.victims, "it has", "they have"), w.name_ranks(late.victims)
        yield _fix("one on each node", made=w.spot(made[0]), test=made[1], have=who, passed=passed, rank=late.rank)
    if named := polling.name_by_hash(frame):
        yield _fix("same name", spot=w.spot(named), look=w.spot(frame))
    if circle := host_waits.actor_circle(frame):
        yield _fix("second thread", circle, decorator=_with_threads(circle.decorator), class_at=w.spot(circle.at))


def _of_locks(s: Situation, late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Fix]:
    """Of a wait for a lock, a place or a condition."""
    awaits, stack = late.activity.awaits, stack_of(s, late)
    ways = [t.frames for t in evidence.tasks] if evidence.tasks else [stack.frames] if stack else []
    if awaits in _OF_A_LOCK and (twice := locks.held_twice(ways)):
        keyword, signal = "async with" if evidence.tasks else "with", evidence.in_handler
        name, inner = "take none in a handler" if signal else "take it once", twice.inner
        yield _fix(name, twice, taken_at=w.spot(inner), function=inner.function, keyword=keyword, signal=signal)
    if awaits in _OF_A_LOCK and (two := locks.crosswise(evidence.own_stacks)):
        yield _in_one_order(two)
    if awaits in _OF_A_LOCK and (own_place := locks.held_by_parent(evidence.tasks)):
        yield _fix("leave the place", own_place, taken_at=w.spot(own_place.inner))
    kept = queues.kept_over_wait(frame, evidence.own_stacks) if awaits == "a lock" and not evidence.tasks else None
    if kept is not None:
        text, behind = line_text(kept.holds.file, kept.holds.line), ""
        if kept.ends is not None:
            behind = f"; what would end that, {w.spot(kept.ends)}, is behind the same lock"
        yield _fix("no wait with a lock", kept, text=text, behind=behind)
    if awaits == "an event or condition" and (told := locks.lost_notice(frame)):
        yield _fix("wait for what is told", told)
    holder = s.case.ranks.get(-1 if (rank := holder_of(s, late)) is None else rank)
    if holder is not None and holder.main_stack and (block := locks.kept_block(holder.main_stack.frames, frame)):
        yield _leave_first(block, holder.identity.rank)
    for rank in late.victims if awaits == "a lock file" else ():  # the kernel does not say who has it
        block = locks.kept_block(s.case.ranks[rank].main_frames, frame) if rank in s.case.ranks else None
        if block is not None and block[2] in {what for b in locks.blocks_at(frame) for what in locks.held_by(b)}:
            yield _leave_first(block, rank)
    is_own = stack is not None and stack.kernel is not None and stack.kernel.holder == evidence.identity.pid
    if is_own and stack is not None and (own_lock := locks.locked_above(stack.frames)):
        yield _fix("lock the file once", outer=w.spot(own_lock[0]), since=own_lock[1])


def _leave_first(block: tuple[Frame, int, str], holder: int | None) -> Fix:
    return _fix("leave the lock first", stands=w.spot(block[0]), since=block[1], what=block[2], holder=holder)


def _in_one_order(two: locks.Crosswise) -> Fix:
    """The thread that may change at the least cost: one that has no more to do with its first lock, or that can name both."""
    sides = (two, two.turned)
    one = next((x for x in sides if x.may_leave_first), None)
    name = "leave the first lock" if one else "one order of locks"
    one = one or next((x for x in reversed(sides) if x.has_both_names), two)
    at, since = one.mine.at, one.mine.since
    words = {"stands": w.spot(at), "since": since, "taken": w.line_at(at.file, since), "function": at.function}
    words |= {"first": one.mine.text, "want": one.want, "wants": w.spot(one.wants)}
    return _fix(name, **words, theirs=w.spot(one.their_wants), their=one.their_want)


def _of_outside(s: Situation, late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Fix]:
    """Of a wait for what other processes have or do."""
    awaits, children, stack = late.activity.awaits, children_of(evidence), stack_of(s, late)
    if awaits == "room in a socket" and (writes := outside_waits.writes_back(children)):
        sends = next((f for f in user_frames(evidence.main_frames) if loop_around(f.file, f.line) is not None), frame)
        yield _fix("read between", sends=w.spot(sends), child=w.spot(writes))
    if awaits == DATABASE:
        yield from _of_database(s, late, frame)
    if awaits == "the other end of a FIFO" and (fifo := outside_waits.opens_fifo(frame)):
        how, block = f", {fifo.how}" if fifo.how else "", {"as": f"with {fifo.name}:" if fifo.is_block else ""}
        yield _fix("no wait for a reader", fifo, how=how, **block)
    if inherited := fresh_lock(own_threads.forked_place(children)):
        yield _fix("fresh lock", **inherited)
    if child := outside_waits.forked_torch(children):
        yield _fix("one thread in the child", child=w.spot(child))
    if stack is not None and (call := outside_waits.lost_worker(stack, children)):
        yield _fix("a pool that notices", call=call)
    if awaits == RESULT_OF_RAY and (left := outside_waits.left_stream(frame)):
        yield _fix("read the stream", left, leaves=w.line_at(frame.file, left.leaves))
    if awaits == RESULT_OF_RAY and (endless := outside_waits.tries_for_ever(frame)):
        decorator = endless.decorator.replace("max_task_retries=-1", "max_task_retries=2")
        yield _fix("limit the tries", endless, class_at=w.line_at(endless.path, endless.at), decorator=decorator)
    if late.activity.is_polled and (named := host_waits.named_actor(frame)):
        yield _fix("a lifetime", made=w.spot(named[0]), call=named[1])
    if awaits == PAUSE and (policy := outside_waits.asks_for_pauses(frame.file)):
        yield _fix("a pause of its own", policy=w.line_at(*policy))
    if awaits == "an event or condition" and _is_barrier(stack) and (gone := outside_waits.left_barrier(frame)):
        meetings = "; ".join(gone.meetings)
        yield _fix("stay at the barrier", gone, leaves=w.line_at(frame.file, gone.leaves), meetings=meetings)
    if late.activity.kind == "spinning" and (loop := outside_waits.unbounded(frame)):
        after = f"\n{loop.after}" if loop.after else ""
        yield _fix("bound the rounds", loop, loop_at=w.line_at(frame.file, loop.line), after=after)


def _is_barrier(stack: ThreadStack | None) -> bool:
    return stack is not None and any(f.function == "_wait" and f.file.endswith("/threading.py") for f in stack.frames)


def _of_database(s: Situation, late: LateRank, frame: Frame) -> Iterator[Fix]:
    """Of a wait for the lock of a database: who may have it, one that waits for this rank."""
    for rank in late.victims:
        evidence = s.case.ranks.get(rank)
        if evidence is not None and (held := outside_waits.open_transaction(evidence.main_frames, frame)):
            yield _fix("a short transaction", held, holder=rank)
    if lines := outside_waits.uncommitted(frame.file):
        writes = ", ".join(w.line_at(frame.file, line) for line in lines[:3])
        yield _fix("commit at once", writes=writes, base=polling.asks_database(frame.file, frame.line))


def _have_left(s: Situation, late: LateRank, frame: Frame) -> bool:
    """Whether a rank that waits for this one has the function in which it stands behind it: it is at a later line of one that both run."""
    mine = user_frames(s.case.ranks[late.rank].main_frames)
    theirs = [f for r in late.victims if r in s.case.ranks for f in user_frames(s.case.ranks[r].main_frames)]
    ran_past = any(is_same_function(f, g) and g.line > f.line for f in mine for g in theirs)
    return ran_past and not any(is_same_function(frame, g) for g in theirs)


def _given_back(kept: given_back.Kept) -> Fix:
    leaves = w.line_at(kept.path, kept.leaves)
    return _fix("give it back", kept, leaves=leaves, what=kept.name, taken_at=kept.taken)


def _kept_by_spinning(s: Situation, frame: Frame, evidence: RankEvidence) -> given_back.Kept | None:
    """Of a lock of the program's own, which asks again and again until it is free: a way on which a rank keeps it."""
    frames = user_frames(evidence.main_frames)
    calls = frames[1] if len(frames) > 1 and is_same_function(frames[0], frame) else None
    others = [f for e in s.case.ranks.values() for t in e.own_stacks for f in user_frames(t.frames) if f != calls]
    return given_back.kept_place(calls, others) if calls is not None else None


def _of_what_another_tells(s: Situation, late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Fix]:
    """Of a wait for what another thread or task of the process does, or has."""
    threads, awaits = evidence.own_stacks, late.activity.awaits
    if body := own_threads.body_waits(threads):
        yield _fix("build it later", body, made=indent(body.made, "    "))
    stacks = [user_frames(frames) for frames in (*(t.frames for t in threads), *(t.frames for t in evidence.tasks))]
    elsewhere = {(f.file, f.function) for mine in stacks if mine[:1] != (frame,) for f in mine}
    if late.activity.kind == "lock":
        if kept := given_back.kept_place(frame, [f for mine in stacks for f in mine]):
            yield _given_back(kept)
        raised = own_threads.not_told(frame, evidence.handled)
        if raised and (raised.at.file, raised.at.function) not in elsewhere:
            yield _fix("tell it all the same", raised, raised=w.spot(raised.at), function=raised.at.function)
    silent = own_threads.untold(frame) if awaits == "an event or condition" else None
    if silent and (silent.path, silent.function) not in elsewhere:
        yield _fix("tell on every way", silent, leaves=w.line_at(silent.path, silent.leaves))
    unfed = late.doer is not None and late.doer.is_unfed
    if awaits == "a queue" and unfed and (ended := own_threads.ended_producer(frame)):
        yield _fix("end the queue", ended, leaves=w.line_at(ended.path, ended.leaves))
    if unwoken := queues.wakes_no_loop(frame):
        given = f", {unwoken.given}" if unwoken.given else ""
        yield _fix("wake the loop", unwoken, told_at=w.spot(unwoken.told), more=given)
    if awaits == "a queue" and (apart := queues.taken_apart(threads)):
        owner = apart.queue.rpartition(".")[0]
        name = f"{owner}.taking" if owner else "taking"
        yield _fix("take one at a time", apart, lock=name, text=indent(apart.text, "    "), was=apart.text)
    of_several = any(f.file.endswith("/multiprocessing/queues.py") for t in threads for f in t.frames)
    if awaits == "a queue" and of_several and (last := queues.one_end(frame)) and _have_left(s, late, frame):
        yield _fix("put it back", last, leaves=w.line_at(last.path, last.leaves))
    if awaits == "a queue" and (filler := queues.waiting_fillers(frame, threads)):
        who = ", ".join(filler.threads[:3])
        yield _fix("ask the fillers", filler, who=who, line=line_text(filler.stands.file, filler.stands.line))
    if awaits == "a queue to be emptied" and (undone := undone_item(frame)):
        yield undone
    if awaits == "an event or condition" and (few := own_threads.few_parties(frame, threads)):
        yield _fix("count those that come", few, made_at=w.line_at(frame.file, few.made))


def _of_tasks_and_pools(late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Fix]:
    """Of a wait for a thread or for its result, where that waits for this one, or has ended."""
    awaits, others = late.activity.awaits, [t for t in evidence.own_stacks if not t.is_main]
    if awaits == "a thread that does not end" and (full := host_waits.full_queue(frame, others)):
        yield _fix("empty the queue", full)
    if awaits == "the result of another thread" and (gone := host_waits.ended_task(frame, evidence.tasks)):
        yield _fix("ask the task", gone, made=w.line_at(gone.path, gone.made))
    threads = [*others, *filter(None, [evidence.main_stack])]
    if awaits == "the result of another thread" and (own := host_waits.own_loop(threads)):
        yield _fix("not in its own loop", own, text=line_text(own.calls.file, own.calls.line))
    if nested := own_threads.own_pool([t for t in others if _waits_for_work(t)]):
        yield _fix("a pool of its own", nested)


def _waits_for_work(thread: ThreadStack) -> bool:
    """Whether a thread waits for what it gave to a pool."""
    above = thread.frames[: next((i for i, f in enumerate(thread.frames) if f.is_user), 0)]
    return any(f.file.endswith(file) and f.function in names for f in above for file, names in _OF_POOLS.items())


def _of_children(s: Situation, late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Fix]:
    """Of a wait for a process that the rank started, or for one that started it."""
    awaits, children, state = late.activity.awaits, children_of(evidence), evidence.state
    is_full = state is not None and bool(state.child_writes)
    is_of_input = state is not None and bool(state.child_asks) and not is_full
    beside = [t for r, e in s.case.ranks.items() if r != late.rank for t in children_of(e)]
    if awaits == "a child process" and (joins := next(filter(None, map(_joins, children)), None)):
        yield _fix("own variables", rank=late.rank, joins=w.spot(joins))
    if awaits == "a child process" and is_of_input and host_waits.writes_to_child(frame.file):
        yield _fix("end of input")
    if awaits == "a pipe" and (question := outside_waits.asks_at(children, beside)):
        yield _fix("no question", asks=w.spot(question))
    if awaits == "a pipe" and is_full and (line := host_waits.unread_errors(frame.file)):
        yield _fix("no pipe for errors", starts=w.line_at(frame.file, line))
    is_fed = awaits == "a child process" and is_full and any(map(host_waits.feeds, evidence.stacks))
    if is_fed and (later := host_waits.read_later(frame)):
        yield _fix("read before", later)
    taker = next(filter(host_waits.puts, children), None)
    if awaits == "a full queue" and taker is not None and (name := host_waits.queue_at(frame)):
        yield _fix("skip a full queue", queue=name, child=w.spot(user_frames(taker.frames)[0]))
    place = driver(s)
    if awaits == "a full queue" and place is not None and (later := host_waits.read_later(place)):
        yield _fix("read while they run" if later.spawn else "read before", later)
    if awaits in _OF_A_LOCK and (kept := host_waits.not_released(frame.file, frame.line)):
        spot, work = w.line_at(kept.path, kept.released), indent(kept.work, "    ")
        yield _fix("release always", kept, spot=spot, work=work, since=kept.taken)
    if gone := outside_waits.ended_sleepers(evidence.main_frames):
        yield _asked_to_end(gone)
    if awaits in OF_A_PROCESS and (silent := host_waits.unanswered([*s.case.launcher_stacks, *children])):
        spot = w.line_at(silent.head.file, silent.way.leaves_at)
        yield _fix("answer each", spot=spot, test=silent.way.text, answer=silent.answer)


def _joins(thread: ThreadStack) -> Frame | None:
    """The line of the user's code at which a process stands in init_process_group."""
    at = next((i for i, f in enumerate(thread.frames) if f.function == "init_process_group" and not f.is_user), -1)
    return w.own_line(thread.frames[at + 1 :]) if at >= 0 else None


def _asked_to_end(gone: outside_waits.EndedSleepers) -> Fix:
    """Killed amid anything, a process may have left more than this event behind: so no change of one line mends it."""
    return edit(
        f"Let the processes end by themselves: {w.spot(gone.ends)} ends some by force that are still waited for",
        f"{w.spot(gone.wakes)}: `{gone.text}` waits until each process that slept there has answered, also one that `{gone.how}` has ended. "
        "A flag that they read behind their wait ends them safely, with their queue read until they have gone: a process that is ended as it "
        "puts keeps the lock of the queue, too",
        verify=f"{AGAIN}: the rank goes on",
        kind=LOOK,
    )


def _with_threads(decorator: str) -> str:
    """The decorator of an actor that runs a second method while the first one waits."""
    return f"{decorator[:-1]}, max_concurrency=2)" if decorator.endswith(")") else f"{decorator}(max_concurrency=2)"


def threads_for(blocked: polling.BlockedLoop) -> Fix:
    """For a method that waits in the one thread in which the method that would end the wait were to run."""
    path, lines = blocked.at.file, []
    for line, head in blocked.coroutines:
        lines.append(f"# {w.line_at(path, line)}, in place of `async {head}`\n{head}")
    if blocked.threads != blocked.decorator:
        lines.append(f"# {w.spot(blocked.at)}, in place of `@{blocked.decorator}`\n@{blocked.threads}")
    return edit(
        f"Take the coroutines out of the actor: with one in it, {blocked.function}() keeps the only thread while it waits",
        "\n".join(lines) + "\n# its methods run in several threads then: what they share needs a lock",
        verify=f"{AGAIN}: the call ends",
    )


def undone_item(frame: Frame) -> Fix | None:
    """Of a line that waits until all items of a queue are done: what does not say so."""
    kept = given_back.not_done(frame)
    if kept is None:
        return None
    past = f", where line {kept.leaves} (`{kept.test}`) leads past line {kept.until}"
    way, taken_at = past if kept.leaves else ": it never says so", w.line_at(kept.path, kept.taken)
    return _fix("say it is done", spot=w.spot(frame), taken_at=taken_at, call=kept.call, done=kept.give, way=way)


def end_the_thread(evidence: RankEvidence) -> Fix | None:
    """How a process comes to its end that waits there for a thread of its own; None where the source does not show it."""
    kept = own_threads.keeps_alive(evidence)
    if kept is None:
        return None
    wants = {"get": "an item of", "put": "room in", "wait": "what is told by"}[kept.does]
    head = f"# {w.spot(kept.stands)}: a thread of {kept.function}() waits for {wants} `{kept.what}`, and the interpreter for the thread\n"
    ends = {
        "get": f"{kept.what}.put(None)   # in a `finally` around the training; and {kept.function}() returns when it gets None",
        "put": f"while not {kept.what}.empty(): {kept.what}.get()   # in a `finally` around the training; and {kept.function}() then ends",
        "wait": f"{kept.what}.set()   # in a `finally` around the training; and {kept.function}() then ends",
    }[kept.does]
    made_at = w.line_at(kept.stands.file, kept.made)
    daemon = f"# {made_at}: it ends with the process then, whatever it waits for\n{kept.thread}" if kept.made else ""
    return edit(
        "Let the thread end with the process: the interpreter waits for it at its end, and nobody is left to end its wait",
        head + (daemon or ends),
        verify=f"{AGAIN}: the process ends, with its exception if it raised one, and the launcher ends the others",
    )


def without_its_server(evidence: RankEvidence, frame: Frame | None) -> Fix | None:
    """How a line goes on that waits for what a thread was to tell which has ended; None where the source does not show it."""
    found = own_threads.ended_server(frame, evidence.stacks) if frame is not None else None
    if frame is None or found is None:
        return None
    return edit(
        f"Wait only as long as the thread runs that is to end the wait: {found.function}() has ended",
        f"# {w.spot(frame)}, in place of `{found.wait}`; what is left for the thread is lost\n"
        f"while not {found.event}.wait(1.0) and {found.thread}.is_alive():\n    pass",
        verify=f"{AGAIN}: the process ends",
    )


def timer_off(s: Situation) -> Mapping[str, object]:
    """The words of the fix for a timer of the program's own that runs on when its handler is gone; nothing where the source shows none."""
    stacks = (frames for e in s.case.ranks.values() for frames in (e.main_frames, e.error.frames if e.error else ()))
    files = {f.file: None for frames in stacks for f in user_frames(frames)}
    found = next((t for path in files if (t := outside_waits.timer_left_on(path))), None)
    return {"restores": w.line_at(*found[:2]), "off": found[2]} if found else {}
