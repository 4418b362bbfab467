"""What ends a wait for a thread of the same process, or for what one of them has or does; and an end of the interpreter that does not come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import NamedTuple

from unhang.analyze.given_back import kept_place, not_done
from unhang.analyze.own_threads import body_waits, ended_producer, few_parties, keeps_alive, not_told, untold
from unhang.analyze.situation import LateRank
from unhang.model import Fix, Frame, RankEvidence, ThreadStack, user_frames
from unhang.rules import wording as w
from unhang.rules.failure import NO_WORDS


class Remedy(NamedTuple):
    """A fix, or the name of one of the card, and its words."""

    fix: str | Fix
    words: Mapping[str, object] = NO_WORDS


def waits_for_work(thread: ThreadStack) -> bool:
    """Whether a thread waits for what it gave to a pool."""
    above = thread.frames[: next((i for i, f in enumerate(thread.frames) if f.is_user), 0)]
    names = [
        ("concurrent/futures/_base.py", "result"),
        ("concurrent/futures/_base.py", "wait"),
        ("concurrent/futures/_base.py", "as_completed"),
    ]
    names += [("multiprocessing/pool.py", name) for name in ("get", "wait", "next")]
    return any(f.file.endswith(file) and f.function == name for f in above for file, name in names)


def of_threads(late: LateRank, frame: Frame, evidence: RankEvidence) -> Iterator[Remedy]:
    """Of a wait for what another thread or task of the process does, or has."""
    threads, awaits = evidence.own_stacks, late.activity.awaits
    if body := body_waits(threads):
        words: dict[str, object] = {"body": w.spot(body.body), "imports": w.spot(body.imports), "use": body.use}
        yield Remedy("build it later", {**words, "function": body.function, "made": indent(body.made, "    ")})
    stacks = [user_frames(frames) for frames in (*(t.frames for t in threads), *(t.frames for t in evidence.tasks))]
    beside = [f for mine in stacks for f in mine]
    elsewhere = [f for mine in stacks if mine[:1] != (frame,) for f in mine]
    if late.activity.kind == "lock" and (kept := kept_place(frame, beside)):
        words = {
            "leaves": f"{w.base_name(kept.path)}:{kept.leaves}",
            "test": kept.test,
            "give": kept.give,
            "what": kept.name,
        }
        yield Remedy("give it back", {**words, "taken_at": kept.taken, "until": kept.until})
    raised = not_told(frame, evidence.handled) if late.activity.kind == "lock" else None
    if raised and not any((f.file, f.function) == (raised.at.file, raised.at.function) for f in elsewhere):
        words = {"raised": w.spot(raised.at), "error": raised.error, "give": raised.give, "until": raised.until}
        yield Remedy("tell it all the same", {**words, "spot": w.spot(frame), "function": raised.at.function})
    silent = untold(frame) if awaits == "an event or condition" else None
    if silent and not any((f.file, f.function) == (silent.path, silent.function) for f in elsewhere):
        words = {"leaves": f"{w.base_name(silent.path)}:{silent.leaves}", "test": silent.test, "give": silent.give}
        yield Remedy(
            "tell on every way", {**words, "until": silent.until, "spot": w.spot(frame), "function": silent.function}
        )
    unfed = late.doer is not None and late.doer.is_unfed
    if awaits == "a queue" and unfed and (ended := ended_producer(frame)):
        words = {"leaves": f"{w.base_name(ended.path)}:{ended.leaves}", "test": ended.test, "queue": ended.queue}
        yield Remedy("end the queue", {**words, "function": ended.function, "spot": w.spot(frame)})
    if awaits == "a queue to be emptied" and (undone := undone_item(frame)):
        yield undone
    if awaits == "an event or condition" and (few := few_parties(frame, threads)):
        words = {"made_at": f"{w.base_name(frame.file)}:{few.made}", "barrier": few.barrier, "here": few.here}
        yield Remedy("count those that come", {**words, "parties": few.parties})


def undone_item(frame: Frame) -> Remedy | None:
    """Of a line that waits until all items of a queue are done: what does not say so."""
    kept = not_done(frame)
    if kept is None:
        return None
    way = (
        f", where line {kept.leaves} (`{kept.test}`) leads past line {kept.until}"
        if kept.leaves
        else ": it never says so"
    )
    words = {"taken_at": f"{w.base_name(kept.path)}:{kept.taken}", "call": kept.call, "done": kept.give, "way": way}
    return Remedy("say it is done", {**words, "spot": w.spot(frame)})


def end_the_thread(evidence: RankEvidence) -> Fix | None:
    """How a process comes to its end that waits there for a thread of its own; None where the source does not show it."""
    kept = keeps_alive(evidence)
    if kept is None:
        return None
    wants = {"get": "an item of", "put": "room in", "wait": "what is told by"}[kept.does]
    head = f"# {w.spot(kept.stands)}: a thread of {kept.function}() waits for {wants} `{kept.what}`, and the interpreter for the thread\n"
    ends = {
        "get": f"{kept.what}.put(None)   # in a `finally` around the training; and {kept.function}() returns when it gets None",
        "put": f"while not {kept.what}.empty(): {kept.what}.get()   # in a `finally` around the training; and {kept.function}() then ends",
        "wait": f"{kept.what}.set()   # in a `finally` around the training; and {kept.function}() then ends",
    }[kept.does]
    made_at = f"{w.base_name(kept.stands.file)}:{kept.made}"
    daemon = f"# {made_at}: it ends with the process then, whatever it waits for\n{kept.thread}" if kept.made else ""
    return Fix(
        title="Let the thread end with the process: the interpreter waits for it at its end, and nobody is left to end its wait",
        advice=head + (daemon or ends),
        verify="unhang run -- <the same command>: the process ends, with its exception if it raised one, and the launcher ends the others",
        undo="revert the edit",
    )
