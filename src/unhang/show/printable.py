"""Makes foreign text harmless to look at: what a job wrote must not steer a terminal or reorder a page."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 control characters, ESC among them
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible and bidirectional format characters
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text: str, keep: str = "", most: int = 4000) -> str:
    r"""The text with control and direction characters spelled out (`\x1b`), at most `most` characters of it.

    Args:
        text: Anything that a job wrote.
        keep: Characters that are wanted, such as a newline in a patch.
        most: What is longer is cut, and the cut is stated.
    """
    cut = text if len(text) <= most else f"{text[:most]} [... {len(text) - most} more characters]"
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), cut)


def duration(seconds: float) -> str:
    """A duration as a person says it: 12 ms, 4.2 s, 31 min 5 s, 2 h 3 min."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
