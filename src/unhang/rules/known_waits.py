"""Waits within a process of which the repair is known: in libraries, by rows of a table; for a thread or its work, by what the source shows."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from textwrap import indent
from typing import NamedTuple

from unhang.analyze.given_back import Kept, Takes, kept_connections, kept_place, not_done, takers
from unhang.analyze.locks import blocks_around, blocks_at, held_by
from unhang.analyze.own_threads import body_waits, ended_producer, few_parties, keeps_alive, not_told, untold
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.trees import covers, nodes_of
from unhang.model import Fix, Frame, RankEvidence, ThreadStack, user_frames
from unhang.model.findings import LIMIT
from unhang.rules import wording as w
from unhang.rules.base import with_words
from unhang.rules.failure import NO_WORDS
from unhang.rules.late import stack_of

_VERIFY = {
    "": "unhang run -- <the same command>: the rank goes on",
    LIMIT: "unhang run -- <the same command>: the rank goes on, or raises",
}
_LISTS = ("at", "calls", "beside", "peers", "meets", "names", "takes", "gives")
_OF_A_WAIT = {*_LISTS, "keyword", "is_awaited", "title", "advice", "command", "setting", "verify", "undo", "kind"}

Frames = Sequence[Frame]


@dataclass(frozen=True)
class KnownWait:
    """A row of the table, which says what its fields mean."""

    fix: Fix
    keyword: str
    at: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    meets: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    is_awaited: bool = False


@cache
def known_waits() -> tuple[KnownWait, ...]:
    """The table. Raises: ValueError if a row has a field that there is not."""
    text = files("unhang.rules").joinpath("known_waits.toml").read_text(encoding="utf-8")
    return tuple(map(_row, tomllib.loads(text)["wait"]))


def _row(fields: Mapping[str, object]) -> KnownWait:
    if unknown := fields.keys() - _OF_A_WAIT:
        raise ValueError(f"a known wait has no field {min(unknown)!r}")
    kind = str(fields.get("kind", ""))
    said = {name: str(fields[name]).strip() for name in ("advice", "command", "setting") if name in fields}
    verify, undo = str(fields.get("verify", _VERIFY[kind])), str(fields.get("undo", "revert the edit"))
    fix = Fix(str(fields["title"]), verify, undo=undo, kind=kind, **said)
    lists = {name: tuple(fields[name]) for name in _LISTS if name in fields}  # type: ignore[arg-type, var-annotated]
    return KnownWait(fix, str(fields.get("keyword", "")), **lists, is_awaited=bool(fields.get("is_awaited")))


def known_repairs(s: Situation, late: LateRank) -> Iterator[Fix]:
    """The fixes of the rows that hold for the line at which a rank waits, the surest first."""
    evidence, frame = s.case.ranks.get(late.rank), late.activity.frame
    if evidence is None or frame is None:
        return
    mine = _waiting(s, late, evidence, frame)
    for row in known_waits():
        above = [_above(frames) for frames in mine]
        holds = any(_stands(row.at, a) for a in above) if row.at else _calls(frame, row, mine)
        others = [frames for frames in _others(evidence, mine) if not _stands(row.at, _above(frames))]
        peers = [e.main_frames for r, e in s.case.ranks.items() if r != late.rank]
        if not holds or any(_stands(row.beside, x) for x in others) or any(_stands(row.peers, x) for x in peers):
            continue
        threads = (t.frames for e in s.case.ranks.values() for t in e.own_stacks)
        if row.meets and not any(all(_stands((place,), t) for place in row.meets) for t in threads):
            continue
        if row.names and (not _is_named(frame.file, row.names) or _is_held(s, frame)):
            continue
        if row.peers and (not all(peers) or len(peers) + 1 < len(s.case.world)):
            continue  # who is not seen may be the one that ends the wait
        words: dict[str, object] = {"spot": w.spot(frame)}
        if row.gives:
            uses = Takes(row.takes, row.keyword, row.gives, row.is_awaited).as_at(frame)
            kept = kept_connections(frame.file, uses) if uses else []
            if uses is None or not kept or any(takers(f, uses) for x in others for f in user_frames(x)):
                continue
            words |= _of_kept(kept)
        yield with_words(row.fix, words)


def _waiting(s: Situation, late: LateRank, evidence: RankEvidence, frame: Frame) -> list[Frames]:
    """The stacks that stand at the line: of tasks, else of the thread that keeps the rank."""
    tasks: list[Frames] = [t.frames for t in evidence.tasks if user_frames(t.frames)[:1] == (frame,)]
    stack = stack_of(s, late)
    return tasks or ([stack.frames] if stack is not None else [])


def _others(evidence: RankEvidence, mine: Sequence[Frames]) -> list[Frames]:
    return [
        frames
        for frames in (*(t.frames for t in evidence.own_stacks), *(t.frames for t in evidence.tasks))
        if frames not in mine
    ]


def _above(frames: Frames) -> Frames:
    """The frames of libraries above the first one of the program."""
    return frames[: next((i for i, f in enumerate(frames) if f.is_user), len(frames))]


def _stands(places: Iterable[str], frames: Frames) -> bool:
    """Whether one of the frames is at one of these places: "file:function", or "file:"."""
    split = [place.rpartition(":") for place in places]
    return any(file in f"/{f.file}" and function in ("", f.function) for f in frames for file, _, function in split)


def _calls(frame: Frame, row: KnownWait, mine: Sequence[Frames]) -> bool:
    """Whether the line waits in one of the row's functions itself, with nothing above it."""
    called = {ast.unparse(n.func) for n in nodes_of(frame.file) if isinstance(n, ast.Call) and covers(n, frame.line)}
    return any(frames[:1] == (frame,) for frames in map(tuple, mine)) and not called.isdisjoint(row.calls)


def _is_held(s: Situation, frame: Frame) -> bool:
    """Whether a rank that is seen stands in a block that has what the line waits for."""
    whats = {what for block in blocks_at(frame) for what in held_by(block)}
    inside = (
        b for e in s.case.ranks.values() for t in e.stacks for f in user_frames(t.frames) for b in blocks_around(f)
    )
    return any(whats & held_by(block) for block in inside)


def _is_named(path: str, names: Iterable[str]) -> bool:
    found = {
        n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else n.arg
        for n in nodes_of(path)
        if isinstance(n, ast.Name | ast.Attribute | ast.keyword)
    }
    return not found.isdisjoint(names)


def _of_kept(kept: Sequence[Kept]) -> dict[str, object]:
    """The words on lines that keep what they took; the first one's in full."""
    first = kept[0]
    lines = w.listed([f"{w.base_name(k.path)}:{k.taken}" for k in kept[:3]])
    way = (
        f"line {first.leaves} (`{first.test}`) leaves before it is given back"
        if first.leaves
        else "nothing gives it back"
    )
    return {"lines": lines, "call": first.call, "name": first.name or "taken", "how": way}


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
