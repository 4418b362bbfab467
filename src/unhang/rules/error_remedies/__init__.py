"""The first fix for an exception whose remedy is established: tables by family, read only where there is an exception.

A row matches by literal text (`has`: one of them stands in `Type: message`), and where given by `type`, `match` and `not` (regular expressions
on the same text), `frame` and `no_frame` (on the files of the traceback), `own` (the line of the program raised it, not a library below) and `line`
(on the source text of that line). Words in braces: {spot} is the line of the program, {line} its text, {name} and {name_line} are what `calls`,
`returns` or `defines` finds in the program, all others are groups of `match`. `unplaced`: its kind where nothing is found.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from unhang.analyze.decisions import returns_none
from unhang.analyze.source import frame_at
from unhang.analyze.trees import last_name, line_text, nodes_of, program_files
from unhang.model import Fix, Frame, RaisedError
from unhang.rules import wording as w
from unhang.rules.base import filled, sections_in

_VERIFY, _UNDO = "unhang run -- <the same command>: outcome clean", "revert the edit"
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
    found = ((name, _HAS.search(text), text) for name, text in sections_in(files(__name__)))
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
        verify=fields.get("verify", _VERIFY),
        advice="\n".join(
            t for line in lines if not _UNKNOWN.search(_known(line, words)) for t in [filled(line, words)]
        ),
        command=filled(fields.get("command", ""), words),
        setting=fields.get("setting", ""),
        undo=fields.get("undo", _UNDO),
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
        if (place := returns_none(folder, function)) is not None:
            yield name, place
    for name, function in fields.get("defines", {}).items():
        if (place := _one_function(folder, function)) is not None:
            yield name, place


def _one_function(folder: str, name: str) -> Frame | None:
    """The one function of the program of that name."""
    found = [
        Frame(path, n.lineno, name)
        for path in program_files(folder)
        for n in nodes_of(path)
        if isinstance(n, ast.FunctionDef) and n.name == name
    ]
    return found[0] if len(found) == 1 else None


def _one_call(folder: str, asked: str) -> Frame | None:
    """The one line of the program that calls one of `A|b.C|d(False)`, of `... without argument` only those that do not give it."""
    names, _, argument = asked.partition(" without ")
    wanted = set(names.split("|"))
    last = {name.partition("(")[0].rpartition(".")[2] for name in wanted}
    calls = [
        (path, n)
        for path in program_files(folder)
        for n in nodes_of(path)
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
    return Fix(
        title=f"Bound what comes in at {w.spot(frame)}: no machine has {int(size[1]) / 1e12:.0f} TB",
        advice=f"# `{line}`\n# asks for {items:,} by {items:,} numbers: this item is far longer than others, or in another unit. Where it is read, on this rank as on all:\n"
        "if len(item) > most:   # what the others have at most\n    item = item[torch.randperm(len(item))[:most]]",
        verify=_VERIFY,
        undo=_UNDO,
    )
