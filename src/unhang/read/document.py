"""A text that people write about a job, in Markdown: what of it was printed by a job, and what is prose, code or advice.

A run book with `ulimit -n 65536` and "too many open files" in it is no job that ran out of files. Only what is pasted counts:
fences without a language or with one of output, and, wherever it stands, a line that only a program prints.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unhang.model.lazy_pattern import lazy_pattern

NAMES = (".md", ".markdown", ".mdx")
MAX_BYTES = 2 << 20
_LEAST_HEADINGS, _LAST_FIRST_HEADING = 2, 12
_HEADING = re.compile(r" {0,3}(#{1,6})\s+\S")
_FENCE = re.compile(r"\s*(```+|~~~+)\s*([\w+.#-]*)[^`]*$")
_OUTPUT = frozenset(
    [
        "text",
        "txt",
        "log",
        "logs",
        "console",
        "output",
        "plain",
        "plaintext",
        "stdout",
        "stderr",
        "none",
        "terminal",
        "error",
        "pytb",
        "traceback",
    ]
)
SHELL = frozenset(["bash", "sh", "shell", "zsh", "console", "terminal", "dockerfile", "env", "ini", "sbatch", "slurm"])
PYTHON = frozenset(["python", "py", "python3"])
_OLD = lazy_pattern(r"\b(?:before|buggy|old|wrong|don't|do not)\b", re.IGNORECASE)
_DRAWN = lazy_pattern(r"^\s*[├└│┌╰]──|[→⇒]|^\s*\|?\s*[├└]")
_SET_TO = lazy_pattern(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`\**:?\s+(?:is\s+)?[Ss]et\s+(?:it\s+)?to\s+`?([\w.]+)")
_CODE_SPAN = lazy_pattern(r"`([^`\n]+)`")
# What only a program prints: a rank or a time before the message, glog, NCCL's own head, a traceback and its frames, an exception.
_PRINTED = lazy_pattern(
    r"\s*(?:\[?(?:rank ?\d+|default\d+|\d+)\]?:\s?\[?[A-Z\d]|\[rank\d+\]|\(\w+ pid=\d+|[\[(]?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|"
    r"\[?[IWEF]\d{4} \d\d:\d\d|[\w.-]+:\d+:\d+ \[\d+\] NCCL|Traceback \(most recent|File \".+\", line \d+|"
    r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt): |Work[A-Z]{2}CL\(|terminate called|srun: error|slurmstepd: |frame #\d+: )"
)


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of one kind: a fence's content, or what stands outside of all. `first`: the number of the first line, from 1.

    `language`: of the fence, in small letters; None outside of fences. `is_old`: it is shown as what was there before.
    """

    first: int
    lines: tuple[str, ...]
    language: str | None
    is_old: bool = False


def is_document(lines: Sequence[str], name: str = "") -> bool:
    """Whether a text is one that people write: named so, or with headings from the beginning on and with fences."""
    parts = list(parts_of(lines))
    prose = [line for part in parts if part.language is None for line in part.lines]
    headings = [i for i, line in enumerate(prose) if _HEADING.match(line)]
    has_fences = any(part.language is not None for part in parts)
    if name.lower().endswith(NAMES):
        return bool(headings) or has_fences
    begun = [i for i, line in enumerate(prose) if line.strip()]
    is_early = bool(headings) and headings[0] in begun[:_LAST_FIRST_HEADING]
    begins = bool(begun) and (headings[:1] == begun[:1] or prose[begun[0]].strip() == "---")
    is_deep = any(_HEADING.match(prose[i])[1] != "#" for i in headings)  # type: ignore[index]  # a comment has one
    return is_early and begins and is_deep and has_fences and len(headings) >= _LEAST_HEADINGS


def parts_of(lines: Sequence[str]) -> Iterator[Part]:
    """The parts of a text, in order. A fence that nobody closes ends with the text."""
    mark = language = ""
    start, said = 0, ""
    for i, line in enumerate(lines):
        fence = _FENCE.match(line)
        if mark:
            if fence and fence[1].startswith(mark) and not fence[2]:
                yield Part(start + 1, tuple(lines[start:i]), language, bool(_OLD.search(said)))
                mark, start, said = "", i + 1, ""
        elif fence:
            yield Part(start + 1, tuple(lines[start:i]), None)
            mark, language, start = fence[1], fence[2].lower(), i + 1
        elif line.strip():
            said = line
    yield Part(start + 1, tuple(lines[start:]), language if mark else None, bool(mark and _OLD.search(said)))


def pasted(numbered: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines that a job printed. The numbers begin at 1, without a gap."""
    found = []
    for part in parts_of([line for _, line in numbered]):
        is_output = part.language is not None and (part.language == "" or part.language in _OUTPUT)
        is_output = is_output and not any(map(_DRAWN.search, part.lines))  # a tree of decisions
        for number, line in enumerate(part.lines, part.first):
            if is_output or _PRINTED.match(line):
                found.append((number, line))
    return found


def without_advice(numbered: Sequence[tuple[int, str]], name: str = "") -> Sequence[tuple[int, str]]:
    """The lines themselves; of a document what was pasted into it."""
    if not numbered or numbered[0][0] != 1 or not is_document([line for _, line in numbered], name):
        return numbered
    return pasted(numbered)


def settings_in(lines: Sequence[str]) -> Iterator[tuple[int, str, bool]]:
    """(number of the first line, text, whether it is Python) of each part that tells people what to set: fences, and `code` in prose.

    Each part is for itself: commands of two fences are mostly alternatives.
    """
    for part in parts_of(lines):
        if part.language is None:
            yield part.first, "\n".join(map(_set_in_prose, part.lines)), False
        elif part.is_old:
            continue
        elif part.language in PYTHON:
            yield part.first, textwrap.dedent("\n".join(part.lines)), True
        elif not part.language or part.language in SHELL:
            yield part.first, "\n".join("" if _PRINTED.match(line) else line.strip() for line in part.lines), False


def _set_in_prose(line: str) -> str:
    told = [f"{name}={value}" for name, value in _SET_TO.findall(line)]
    return " ; ".join([*told, *(span for span in _CODE_SPAN.findall(line) if "=" in span)])
