"""Waits in libraries of which the repair is known: which row of the table holds for a rank."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from unhang.analyze.given_back import Kept, Takes, kept_connections, takers
from unhang.analyze.locks import blocks_around, blocks_at, held_by
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.trees import covers, nodes_of
from unhang.model import Fix, Frame, RankEvidence, user_frames
from unhang.model.findings import LIMIT
from unhang.rules import wording as w
from unhang.rules.base import with_words
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
        if row.meets and not any(_stands(row.meets, t.frames) for e in s.case.ranks.values() for t in e.own_stacks):
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
        n.id if isinstance(n, ast.Name) else n.attr for n in nodes_of(path) if isinstance(n, ast.Name | ast.Attribute)
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
