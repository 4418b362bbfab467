"""Lines for people, one write each so that those of several ranks do not mix."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress

MOST_WORDS = 500
MOST_TEXT = 8000
_MOST_LINES = 40
_MOST_RUNS = 8


def tell(tag: str, text: str) -> None:
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


def names_of(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0, 2, 5-7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [str(r[0]) if len(r) == 1 else f"{r[0]}, {r[1]}" if len(r) == 2 else f"{r[0]}-{r[-1]}" for r in runs]
    more = f" and {len(parts) - _MOST_RUNS} more groups" if len(parts) > _MOST_RUNS else ""
    is_one = len(runs) == 1 and len(runs[0]) == 1
    return f"rank{'' if is_one else 's'} {', '.join(parts[:_MOST_RUNS])}{more}"


def have(ranks: Sequence[int]) -> str:
    """`rank 1 has`, `ranks 0, 2 have`."""
    return f"{names_of(ranks)} {'has' if len(ranks) == 1 else 'have'}"
