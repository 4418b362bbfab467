"""Names with the time in them, which each process makes for itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_STAMPED = re.compile(r"([\w.=-]*?)(?<!\d)((?:20)?\d{6})[-_T](\d\d)(\d\d)(\d\d)(?!\d)([\w.=-]*)(?=[/'\"\s]|$)")
_APART_S, _MOST_SEARCHED = 120, 4000


def named_apart(s: Situation, text: str) -> bool:
    """Whether a folder on a missing path, in the text of an exception, has a time in its name, and a line tells of the same one seconds apart.

    Each process then made a name of its own.
    """
    missing = [m.groups() for m in _STAMPED.finditer(text)]
    told = {m.groups() for x in s.case.log[:_MOST_SEARCHED] for m in _STAMPED.finditer(x.text)} if missing else set()
    alike = ((a, b) for a in missing for b in told if (a[0], a[1], a[5]) == (b[0], b[1], b[5]) and a != b)
    return any(abs(_seconds(a[2:5]) - _seconds(b[2:5])) <= _APART_S for a, b in alike)


def _seconds(clock: Sequence[str]) -> int:
    hours, minutes, seconds = map(int, clock)
    return 3600 * hours + 60 * minutes + seconds
