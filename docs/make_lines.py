"""Writes what is derived from the tables of log lines: the index of their anchors, what is searched of the catalogue, the guards' echoes."""

from __future__ import annotations

from unhang.inside.guards.words import ROWS
from unhang.read.logs import INDEX, guards_text, index_text, searched_text
from unhang.read.logs.catalogue import SEARCHED

if __name__ == "__main__":
    for path, text in ((INDEX, index_text()), (SEARCHED, searched_text()), (ROWS, guards_text())):
        path.write_text(text, encoding="utf-8")
        print(path)
