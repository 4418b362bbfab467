"""Lines for people: one write each so that those of several ranks do not mix; errors, sets of ranks and lengths of time in words.

And whether such a text is only the echo of a peer that is gone, by the rows that a diagnosis goes by, too.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path

MOST_WORDS = 500
MOST_TEXT = 8000
_MOST_LINES = 40
_MOST_RUNS = 8
ROWS = Path(__file__).with_name("echoes.tsv")
_MOST_ECHO_LINES, _MOST_CHARS = 60, 4000
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|)\s*")
Duration = float | int | timedelta | str


def log(tag: str, text: str) -> None:
    """Writes `[tag] text` to stderr. Never raises: the stream may be closed."""
    with suppress(Exception):
        sys.stderr.write("".join(f"[{tag}] {line}\n" for line in text.splitlines()[:_MOST_LINES] or [""]))
        sys.stderr.flush()


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end and how much lies between."""
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head]} [... {len(text) - most} characters left out ...] {text[head - most :]}"


def in_words(error: BaseException) -> str:
    """Type and message of an exception, in at most about MOST_WORDS characters; also where `str(error)` raises."""
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - a message that cannot be had must not hide the error
        message = f"<its message cannot be had: str() raised {type(second).__name__}>"
    return shortened(f"{type(error).__name__}: {message}" if message else type(error).__name__, MOST_WORDS)


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, in at most about MOST_TEXT characters; a huge message does not push out its lines."""
    try:
        parts = [shortened(part, MOST_TEXT // 4) for part in traceback.format_exception(error)]
        return shortened("".join(parts), MOST_TEXT)
    except Exception:  # noqa: BLE001 - an exception may bring code of its own that fails here
        return in_words(error)


def some_of(names: Sequence[object], most: int) -> str:
    """`a, b, c and 5 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0, 2, 5-7`, `no rank`: the words of the reports. Beyond eight runs the ranks left out are counted."""
    known = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in known:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs[:_MOST_RUNS])
    more = f" and {sum(map(len, runs[_MOST_RUNS:]))} more" if len(runs) > _MOST_RUNS else ""
    return f"rank{'' if len(known) == 1 else 's'} {shown}{more}" if known else "no rank"


def have(ranks: Sequence[int]) -> str:
    """`rank 1 has`, `ranks 0, 2 have`."""
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def seconds_of(value: Duration) -> float:
    """Seconds of a number, a timedelta, or a text such as "90", "30 s", "10m", "1.5h".

    Raises:
        ValueError: it is not a length of time, or not above zero.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a length of time; write seconds, or 30s, 10m, 1.5h")
        seconds = float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a length of time; write seconds, or 30s, 10m, 1.5h")
    else:
        seconds = float(value)
    if not 0 < seconds < 1e9:
        raise ValueError(f"{value!r} is not a sensible length of time; it must be above zero")
    return seconds


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
    for line in text.splitlines()[:_MOST_ECHO_LINES]:
        part = line[:_MOST_CHARS]
        if any(any(a in part for a in anchors) and re.search(regex, part) for regex, anchors in _rows()):
            return True
    return False
