"""Who printed a line, told by its prefix or by the names in it: known also of lines that no row of the catalogue knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from unhang.read.logs.catalogue.rows import FOLDER

_MOST_CHARS = 2000
_TABLE = FOLDER / "emitters.tsv"


class Emitter(NamedTuple):
    """A program or library that prints lines, and the layer in which it stands."""

    name: str
    layer: str


PROGRAM = Emitter("the program itself", "user")


@cache
def _table() -> Sequence[tuple[Emitter, re.Pattern[str]]]:
    rows = (line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines())
    return [(Emitter(name, layer), re.compile(regex)) for name, layer, regex in rows]


def emitter_of(line: str) -> Emitter:
    """The emitter of a line; the program itself where nothing tells another one. The table's order decides among several."""
    head = line[:_MOST_CHARS]
    return next((emitter for emitter, regex in _table() if regex.search(head)), PROGRAM)
