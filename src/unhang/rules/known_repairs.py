"""What tables tell of a repair: the first fix of an exception (`error_remedies/*.toml`), and of a wait within a library (`known_waits.toml`).

Of an exception a row matches by literal text (`has`: one of them stands in `Type: message`), and where given by `type`, `match` and `not` (regular
expressions on the same text), `frame` and `no_frame` (on the files of the traceback), `own` (the line of the program raised it, not a library below)
and `line` (on the source text of that line). Words in braces: {spot} is the line of the program, {line} its text, {name} and {name_line} are what
`calls`, `returns` or `defines` finds in the program, all others are groups of `match`. `unplaced`: its kind where nothing is found.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from unhang.analyze.program.source import frame_at
from unhang.analyze.program.trees import covers, functions_named, inside, last_name, line_text, nodes_of, program_nodes
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits.given_back import Kept, Takes, kept_connections, takers
from unhang.analyze.waits.locks import blocks_around, blocks_at, held_by
from unhang.model import Fix, Frame, RaisedError, RankEvidence, user_frames
from unhang.model.findings import LIMIT
from unhang.rules import wording as w
from unhang.rules.base import AGAIN, CLEAN, edit, filled, sections_in, with_words
from unhang.rules.late import stack_of

_HAS = re.compile(r"^has = (\[.*\])$", re.MULTILINE)
_FIELDS = {"has", "type", "match", "not", "frame", "no_frame", "own", "line", "title", "kind", "unplaced", "calls", "returns", "defines", "source",
           "advice", "command", "setting", "verify", "undo"}  # fmt: skip
_UNKNOWN = re.compile(r"\{[a-z]\w*\}")
_QUOTED_LINE = re.compile(r"(?::|, in place of) `\{line\}`")
_LONGEST_LINE = 120
_ALLOCATION = re.compile(r"tried to allocate (\d+) bytes")
_NO_MACHINE_HAS = 2**43


class Row(NamedTuple):
    """A message and its remedy. `has`: the texts of which one must stand in it; `text`: the row as it is written."""

    name: str
    has: tuple[str, ...]
    text: str

    @property
    def fields(self) -> Mapping[str, Any]:
        """All of the row. Raises: ValueError if it has a field that none has."""
        found: Mapping[str, Any] = tomllib.loads(self.text)[self.name]
        if unknown := found.keys() - _FIELDS:
            raise ValueError(f"the remedy {self.name!r} has no field {unknown.pop()!r}")
        return found


@cache
def all_rows() -> tuple[Row, ...]:
    """Every row of the tables; only what is searched for is read, for to read all as TOML takes longer than most verdicts."""
    found = (
        (name, _HAS.search(text), text) for name, text in sections_in(files("unhang.rules").joinpath("error_remedies"))
    )
    return tuple(Row(name, tuple(json.loads(has[1])), text) for name, has, text in found if has)


def rows_for(error: RaisedError, frame: Frame | None) -> tuple[Row, ...]:
    """The rows that an exception matches; of those by the library that raised it and those for all, the first."""
    text = error.text
    found = [row for row in all_rows() if any(part in text for part in row.has) and _fits(row.fields, error, frame)]
    return tuple([row for row in found if "frame" in row.fields] or found)


def _fits(fields: Mapping[str, Any], error: RaisedError, frame: Frame | None) -> bool:
    text, places = error.text, "\n".join(f.file for f in error.frames)
    asked = (
        fields.get("type", kind := error.type.rpartition(".")[2]) == kind,
        "match" not in fields or re.search(fields["match"], text),
        "not" not in fields or not re.search(fields["not"], text),
        "frame" not in fields or re.search(fields["frame"], places),
        "no_frame" not in fields or not re.search(fields["no_frame"], places),
        "own" not in fields or not error.frames or error.frames[0].is_user,
        "line" not in fields or (frame is not None and re.search(fields["line"], line_text(frame.file, frame.line))),
    )
    return all(asked)


def of_error(error: RaisedError, frame: Frame | None) -> Fix | None:
    """What mends it, where that is established; None where nothing is, or where more than one thing may be meant.

    `frame`: the innermost one of the program, where it is known.
    """
    rows = rows_for(error, frame)
    if len(rows) == 1:
        return _fix(rows[0].fields, error.text, frame)
    return of_allocation(error.text, frame) if frame is not None else None


def _fix(fields: Mapping[str, Any], text: str, frame: Frame | None) -> Fix:
    places = dict(_places(fields, frame)) if frame is not None else {}
    words = {"spot": w.spot(frame) if frame is not None else "the line that raises"}
    words |= {name: w.spot(place) for name, place in places.items()}
    words |= {f"{name}_line": line_text(place.file, place.line) for name, place in places.items()}
    if frame is not None and 0 < len(own := line_text(frame.file, frame.line)) <= _LONGEST_LINE:
        words["line"] = own
    if "match" in fields and (found := re.search(fields["match"], text)) is not None:
        words |= {name: value or "" for name, value in found.groupdict().items()}
    advice = fields.get("advice", "").strip("\n")
    lines = (advice if "line" in words else _QUOTED_LINE.sub("", advice)).split("\n")
    return Fix(
        title=filled(fields["title"], words),
        verify=fields.get("verify", CLEAN),
        advice="\n".join(
            t for line in lines if not _UNKNOWN.search(_known(line, words)) for t in [filled(line, words)]
        ),
        command=filled(fields.get("command", ""), words),
        setting=fields.get("setting", ""),
        undo=fields.get("undo", "revert the edit"),
        kind=fields.get("kind", fields.get("unplaced", "") if not places else ""),
    )


def _known(line: str, words: Mapping[str, str]) -> str:
    """A line of advice without the words that are known: what is left in braces is not."""
    return filled(line, dict.fromkeys(words, ""))


def _places(fields: Mapping[str, Any], frame: Frame) -> Iterator[tuple[str, Frame]]:
    """The lines of the program that a row asks for, by the names that it gives them."""
    folder = str(Path(frame.file).parent)
    for name, asked in fields.get("calls", {}).items():
        if (place := _one_call(folder, asked)) is not None:
            yield name, place
    for name, function in fields.get("returns", {}).items():
        if (place := _returns_none(folder, function)) is not None:
            yield name, place
    for name, function in fields.get("defines", {}).items():
        if (place := _one_function(folder, function)) is not None:
            yield name, place


def _one_function(folder: str, name: str) -> Frame | None:
    """The one function of the program of that name."""
    found = [Frame(path, n.lineno, name) for path, n in functions_named(folder, name)]
    return found[0] if len(found) == 1 else None


def _returns_none(folder: str, name: str) -> Frame | None:
    """The one line of the program's files at which a function of that name returns None."""
    found = [
        Frame(path, n.lineno, name)
        for path, function in functions_named(folder, name)
        for n in inside(function, ast.Return)
        if n.value is None or ast.unparse(n.value) == "None"
    ]
    return found[0] if len(found) == 1 else None


def _one_call(folder: str, asked: str) -> Frame | None:
    """The one line of the program that calls one of `A|b.C|d(False)`, of `... without argument` only those that do not give it."""
    names, _, argument = asked.partition(" without ")
    wanted = set(names.split("|"))
    last = {name.partition("(")[0].rpartition(".")[2] for name in wanted}
    calls = [
        (path, n)
        for path, n in program_nodes(folder)
        if isinstance(n, ast.Call)
        and (name := last_name(n.func)) in last
        and not wanted.isdisjoint(_ways_to_write(n, name))
    ]
    given = [{k.arg for k in n.keywords} for _, n in calls]
    found = {
        frame_at(path, n.lineno) for (path, n), own in zip(calls, given, strict=True) if not own & {argument, None}
    }
    return found.pop() if len(found) == 1 else None


def _ways_to_write(call: ast.Call, name: str) -> tuple[str, ...]:
    """A call as a row may name it: by its last name, its whole one, or its last one with what it is given."""
    return name, ast.unparse(call.func), f"{name}({', '.join(map(ast.unparse, call.args))})"


def of_allocation(text: str, frame: Frame) -> Fix | None:
    """For an allocation that no machine could give."""
    size = _ALLOCATION.search(text)
    if size is None or int(size[1]) < _NO_MACHINE_HAS:
        return None
    items, line = int((int(size[1]) / 4) ** 0.5), line_text(frame.file, frame.line)
    return edit(
        f"Bound what comes in at {w.spot(frame)}: no machine has {int(size[1]) / 1e12:.0f} TB",
        f"# `{line}`\n# asks for {items:,} by {items:,} numbers: this item is far longer than others, or in another unit. Where it is read, on this rank as on all:\n"
        "if len(item) > most:   # what the others have at most\n    item = item[torch.randperm(len(item))[:most]]",
        verify=CLEAN,
    )


# Waits within a library.

_GOES_ON = {"": f"{AGAIN}: the rank goes on", LIMIT: f"{AGAIN}: the rank goes on, or raises"}
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
    verify, undo = str(fields.get("verify", _GOES_ON[kind])), str(fields.get("undo", "revert the edit"))
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
    lines = w.listed([w.line_at(k.path, k.taken) for k in kept[:3]])
    way = (
        f"line {first.leaves} (`{first.test}`) leaves before it is given back"
        if first.leaves
        else "nothing gives it back"
    )
    return {"lines": lines, "call": first.call, "name": first.name or "taken", "how": way}
