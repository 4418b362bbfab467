"""Lines for people, one write each so that those of several ranks do not mix."""

from __future__ import annotations

import sys
from contextlib import suppress


def tell(tag: str, text: str) -> None:
    """Writes `[tag] text` to stderr. Never raises: the stream may be closed."""
    with suppress(Exception):
        sys.stderr.write("".join(f"[{tag}] {line}\n" for line in text.splitlines() or [""]))
        sys.stderr.flush()
