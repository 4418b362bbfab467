"""Mends files: text edits, applied from the last to the first, kept only if the file is still a program."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from unhang.lint.ir import Found


def mended(data: bytes, found: Iterable[Found]) -> tuple[bytes, int]:
    """The text with the edits of these findings made, and how many were; as it was if it would be no program any more."""
    done: list[Found] = []
    text, last = data, len(data) + 1
    for one in sorted(found, key=lambda f: max((e[1] for e in f.edits), default=0), reverse=True):
        if not one.edits or max(e[1] for e in one.edits) > last:
            continue
        trial = text
        for start, end, new in sorted(one.edits, reverse=True):
            trial = trial[:start] + new.encode() + trial[end:]
        try:
            ast.parse(trial)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        text, last = trial, min(e[0] for e in one.edits)
        done.append(one)
    return text, len(done)


def mended_files(found: Iterable[tuple[str, Found]], is_unsafe: bool) -> dict[str, tuple[bytes, bytes, int]]:
    """File -> its text before and after, and the number of findings mended."""
    by_path: dict[str, list[Found]] = {}
    for path, one in found:
        if one.edits and (one.is_safe or is_unsafe):
            by_path.setdefault(path, []).append(one)
    out = {}
    for path, of_file in by_path.items():
        before = Path(path).read_bytes()
        after, count = mended(before, of_file)
        if count:
            out[path] = before, after, count
    return out


def diff(files: Mapping[str, tuple[bytes, bytes, int]]) -> str:
    """The changes as a patch."""
    parts: list[str] = []
    for path, (before, after, _) in sorted(files.items()):
        old, new = (text.decode("utf-8", "surrogateescape").splitlines(keepends=True) for text in (before, after))
        parts += difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    return "".join(p if p.endswith("\n") else p + "\n\\ No newline at end of file\n" for p in parts)
