"""One file on its own: from bytes to what is kept of it, or to the reason why it could not be read; and the same file, mended."""

from __future__ import annotations

import ast
import difflib
import gc
import io
import json
import os
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from unhang.lint.ir import File, Found
from unhang.lint.known import HINTS, is_of_test
from unhang.lint.lower import Lowering
from unhang.lint.syntax import Syntax

_EXPERTS = re.compile(rb"self\.experts\b")
_GIVES_UP = re.compile(rb"== 0:\s+return\b")  # where there is nothing in the batch, perhaps
_NOQA = re.compile(rb"#\s*noqa(?::\s*(?P<codes>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)
_OURS = re.compile(rb"#\s*unhang:\s*ignore(?:\[(?P<codes>[A-Z0-9,\s]*)\])?")
_DEEPEST = 5000  # calls within calls of our own; the parser itself gives up before


def read_file(path: str, data: bytes, is_wanted: bool = False) -> File:
    """What is kept of a file. It is parsed only where a hint or `is_wanted` says that something may be found. Never raises."""
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    file = File(path, module_of(path), lines)
    if not is_wanted and not has_hints(data):
        return file
    if path.endswith(".ipynb"):
        data, file.reason = _cells(data)
        if file.reason:
            return file
    try:
        with deep_and_quick():
            _parse(file, data)
    except SyntaxError as error:
        file.reason = f"line {error.lineno or 1} is not Python that this Python can read: {error.msg}"
    except (RecursionError, MemoryError):
        file.reason = "its code is nested too deeply to be followed"
    except (UnicodeDecodeError, LookupError, ValueError) as error:
        file.reason = f"it cannot be read as text: {error}"
    if file.reason:
        file.functions, file.found = [], []
    return file


def has_hints(data: bytes) -> bool:
    """Whether what is in a file may make a finding."""
    return any(hint in data for hint in HINTS) or _EXPERTS.search(data) is not None


def may_help(data: bytes) -> bool:
    """Whether what is in a file may be of use to others that make collectives."""
    return (
        b"arly_stop" in data or b"arlyStop" in data or b"patience" in data or b"AverageMeter" in data
        or b"isnan(" in data or b"isfinite(" in data or (b"rank" in data and (b"yield" in data or b"_size" in data))
        or _GIVES_UP.search(data) is not None
    )  # fmt: skip


@contextmanager
def deep_and_quick() -> Iterator[None]:
    """Code that is nested deeply is followed by functions that call themselves; millions of small objects, none in cycles, need no collector."""
    limit, was_collected = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    gc.disable()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        if was_collected:
            gc.enable()


def _parse(file: File, data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(data, file.path)
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding)
    as_utf8 = text.encode("utf-8", "surrogatepass")
    bom = data[:3] == b"\xef\xbb\xbf"
    syntax = Syntax({}, as_utf8)
    lowering = Lowering(text.splitlines() if "\f" not in text else re.split("\r\n|\r|\n", text), syntax)
    lowering.module(tree)
    file.names, file.functions = lowering.names, lowering.functions
    file.classes, file.fields = lowering.classes, lowering.fields
    file.found = [f for f in syntax.finish() if not is_of_test(file.path, f.code)]
    if encoding != "utf-8" or bom or b"\r" in data:  # offsets would not be those of the file
        for found in file.found:
            found.edits = []
    file.quiet = suppressed(as_utf8)
    file.is_parsed = True


def suppressed(data: bytes) -> dict[int, list[str]]:
    """Line -> codes that are silenced there; an empty list silences all."""
    found: dict[int, list[str]] = {}
    if b"noqa" not in data and b"unhang:" not in data and b"NOQA" not in data:
        return found
    for number, line in enumerate(data.split(b"\n"), start=1):
        if b"#" not in line:
            continue
        for pattern in (_OURS, _NOQA):
            match = pattern.search(line)
            if match is not None:
                codes = re.findall("[A-Z]+[0-9]+", (match["codes"] or b"").decode().upper())
                found[number] = codes
                break
    return found


def _cells(data: bytes) -> tuple[bytes, str]:
    """The code of a notebook, one cell after the other; lines of the shell and magics are left empty."""
    try:
        cells = json.loads(data)["cells"]
        texts = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return b"", "it is not a notebook that can be read"
    lines = [line for text in texts for line in [*text.split("\n"), ""]]
    return "\n".join("" if line.lstrip().startswith(("%", "!", "?")) else line for line in lines).encode(), ""


def module_of(path: str) -> str:
    """The name under which a file is imported: from the topmost folder that is a package."""
    folder, name = os.path.split(os.path.abspath(path))
    package = package_of(folder)
    if name == "__init__.py":
        return package
    return f"{package}.{name.removesuffix('.py')}" if package else name.removesuffix(".py")


@cache
def package_of(folder: str) -> str:
    """The name under which a folder is imported; empty: it is no package. Asked for once a run: `package_of.cache_clear()`."""
    above, name = os.path.split(folder)
    if not name or not os.path.exists(os.path.join(folder, "__init__.py")):
        return ""
    package = package_of(above)
    return f"{package}.{name}" if package else name


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
