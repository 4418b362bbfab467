"""Whether an exception is only the echo of a peer that is gone, by the rows that a diagnosis goes by, too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROWS = Path(__file__).with_name("echoes.tsv")
_MOST_LINES, _MOST_CHARS = 60, 4000


@cache
def _rows() -> Sequence[tuple[str, Sequence[str]]]:
    """Expressions, each with texts of which a line that it matches holds one; none where the file cannot be read."""
    try:
        lines = ROWS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    return [(regex, anchors) for regex, *anchors in (line.split("\t") for line in lines)]


def is_echo(text: str) -> bool:
    """Whether a text only says that a peer, the network or the store went away, or that the wait for them ran out.

    An exception is given as `Type: message`. Of a long text the first lines are looked at. Never raises.
    """
    for line in text.splitlines()[:_MOST_LINES]:
        part = line[:_MOST_CHARS]
        if any(any(a in part for a in anchors) and re.search(regex, part) for regex, anchors in _rows()):
            return True
    return False
