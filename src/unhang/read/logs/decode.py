"""Bytes of a log -> its lines: any encoding, colours, progress bars, JSON around it, parts of lines; and what people pasted of it into a text.

A run book with `ulimit -n 65536` and "too many open files" in it is no job that ran out of files. Only what is pasted counts:
fences without a language or with one of output, and, wherever it stands, a line that only a program prints.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.ras import ras_lines

MAX_JOINED_CHARS = 1 << 20
# So much of a line a launcher's buffer holds; of a line that is longer the rest comes behind the same label.
_BUFFERS = frozenset(size - less for size in (512, 1024, 2048, 4096, 8192, 16384, 32768) for less in (0, 1, 2))
_SHORTEST = min(_BUFFERS)
_LABEL = re.compile(
    r" {0,6}\d{1,7}: |\[\d{1,6},\d{1,7}\](?:\[[^\]\s]{1,80}\])?<std(?:out|err)>: ?|\[[a-z]{3,20}\d{1,5}\]:"
)
_RUNTIME = re.compile(r"\S{20,40} (std(?:out|err)) ([PF]) ")

Lines = Sequence[tuple[int, str]]


def joined(lines: Lines) -> Iterator[tuple[int, str]]:
    """The lines, each whole, with the number of its first part.

    A container's runtime says of each part whether it is the last (`stdout P`, `stdout F`). What `srun --label` and its like cut is known
    by its length, and by the same label on the line behind it.
    """
    open_parts: dict[str, tuple[int, str]] = {}
    before: tuple[int, str, str, int] | None = None  # number, line, label, length of its last part
    for number, line in lines:
        if " P " in line[:60] or open_parts:
            match = _RUNTIME.match(line)
            if match is not None:
                stream, begun = match[1], open_parts.pop(match[1], None)
                whole = (begun[0], begun[1] + line[match.end() :]) if begun else (number, line)
                if match[2] == "P" and len(whole[1]) < MAX_JOINED_CHARS:
                    open_parts[stream] = whole
                    continue
                number, line = whole
        if before is not None:
            label = before[2]
            if line.startswith(label) and len(before[1]) < MAX_JOINED_CHARS:
                rest = line[len(label) :]
                line = before[1] + rest
                before = (before[0], line, label, len(rest))
                if len(rest) in _BUFFERS:
                    continue
                yield before[0], line
                before = None
                continue
            yield before[0], before[1]
            before = None
        if len(line) > _SHORTEST - 3 and (match := _LABEL.match(line)) and len(line) - match.end() in _BUFFERS:
            before = (number, line, match[0], 0)
            continue
        yield number, line
    if before is not None:
        yield before[0], before[1]
    for number, line in open_parts.values():
        yield number, line


MAX_STATES = 50
MAX_JSON_CHARS = 1 << 20

TROUBLE = re.compile(
    r"error|exception|traceback|warn|fail|fatal|abort|killed|signal|timeout|timed out|watchdog|terminat|exit ?code"
    r"|refused|in use|unreachable|no space|out of memory|oom|nccl|gloo|xid|hang|stuck|rendezvous|store",
    re.IGNORECASE,
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]_P^][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BAR = re.compile(r"\d%\||\d/\d+ \[|\d(?:it|ex) \[|\d+%[ |]")
_UTF16_SAMPLE = 4096
_TEXTS = ("log", "message", "msg", "MESSAGE", "event", "textPayload", "line", "@message")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "asctime", "__REALTIME_TIMESTAMP")
_RANKS = ("rank", "global_rank")
_HOSTS = (
    "host",
    "hostname",
    "_HOSTNAME",
    "node",
    "nodename",
    "pod",
    "pod_name",
    "kubernetes.pod_name",
    "kubernetes.host",
)
_PIDS = ("pid", "process", "_PID", "process_id")
_TRACES = ("exc_info", "exception", "exc_text", "stack_trace", "traceback", "stack")
_OTHERS = ("stream", "level", "severity", "levelname", "logger", "PRIORITY", "stream_name", "record")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A line that a collector wrapped in JSON. `time`: as printed; `is_partial`: the next one of the stream goes on."""

    text: str
    time: str = ""
    rank: int | None = None
    host: str = ""
    pid: int | None = None
    stream: str = ""
    is_partial: bool = False


def lines_of(data: bytes) -> Iterator[str]:
    """Lines as a terminal would leave them: of a progress bar only its last state."""
    for _, line in numbered_lines(data):
        yield line


def numbered_lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Lines with their number in the file. A message between two states of a progress bar is a line of its own."""
    content = _text(data).replace("\0", "").replace("\r\n", "\n")
    if "\n" not in content and "\r" in content and not _BAR.search(content):
        content = content.replace("\r", "\n")
    if report := ras_lines(content):
        yield from report
        return
    for number, line in enumerate(exported(content) or content.removesuffix("\n").split("\n") if content else (), 1):
        bare = _ANSI.sub("", line) if "\x1b" in line else line
        if "\r" not in bare:
            yield number, bare
            continue
        for part in _last_states(bare):
            yield number, part


def exported(content: str) -> list[str]:
    """The records of a log that a collector exported as one JSON value, each as a line; [] where it is none."""
    start = content[:64].lstrip()[:1]
    if start not in ("[", "{") or not content.rstrip().endswith("]" if start == "[" else "}"):
        return []
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return []
    return [record if isinstance(record, str) else json.dumps(record) for record in records_of(value)]


def records_of(value: object, depth: int = 3) -> list[object]:
    """The records of an export: in a list, or in the longest list of an object; those of Loki are pairs of a time and a line."""
    if isinstance(value, dict) and depth:
        return max((records_of(inner, depth - 1) for inner in value.values()), key=len, default=[])
    if not isinstance(value, list) or not value:
        return []
    if all(isinstance(v, list) and len(v) == 2 and all(isinstance(text, str) for text in v) for v in value):
        return [{"time": time, "message": text} for time, text in value]
    if all(isinstance(v, dict) for v in value):
        if all(isinstance(v.get("values"), list) for v in value) and depth:
            return [record for v in value for record in records_of(v["values"], depth - 1)]
        return list(value) if any(unwrap(json.dumps(v)) for v in value[:MAX_STATES]) else []
    return []


def _text(data: bytes) -> str:
    """UTF-8 where it is; else UTF-16, or one byte for each character."""
    if encoding := wide_encoding(data):
        return data.decode(encoding, "replace")
    text = data.decode("utf-8-sig", "replace")
    broken = text.count("\ufffd")
    if broken and broken > sum(c > "\x7f" for c in text) - broken and not any("\u0080" <= c < "\ufffd" for c in text):
        return data.decode("cp1252", "replace")
    return text


def wide_encoding(start: bytes) -> str:
    """The encoding of a log in UTF-16, told by its mark or its zeros; "" for all others."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    sample = start[:_UTF16_SAMPLE]
    for encoding, at in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = sample[at::2].count(0), sample[1 - at :: 2].count(0)
        if len(sample) >= 8 and zeros > 0.4 * len(sample) and not others:
            return encoding
    return ""


def _last_states(line: str) -> list[str]:
    """What remains of a line that was written over: the messages in it, and the last state."""
    parts = [part for part in line.split("\r") if part.strip()]
    if not parts:
        return [""]
    kept = [p for p in parts[:-1] if not _BAR.search(p) and TROUBLE.search(p)]
    glued = [
        p
        for p in parts[:-1]
        if _BAR.search(p) and ("[rank" in p or "]Traceback" in p or re.search(r"\[[EWF]\d{0,4} ", p))
    ]
    chosen = dict.fromkeys([*kept, *glued][:MAX_STATES])
    return [*(p for p in dict.fromkeys(parts[:-1]) if p in chosen), parts[-1]]


def unwrap(line: str) -> Wrapped | None:
    """The line inside a collector's JSON object; None where the line is none."""
    bare = line.strip()
    if not (bare.startswith("{") and bare.endswith("}") and '"' in bare[:4]) or len(bare) > MAX_JSON_CHARS:
        return None
    try:
        found = json.loads(bare)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not any(k in found for k in (*_TIMES, *_OTHERS)):
        return None
    names = ("text",) if "record" in found else _TEXTS  # loguru's "text" is everybody's name for a sample of data
    text = next((found[k] for k in names if isinstance(found.get(k), str)), None)
    if text is None:
        return None
    fields = {**_flat(found, "kubernetes"), **_flat(found, "record"), **_flat(found, "resource"), **found}
    trace = next((fields[k] for k in _TRACES if isinstance(fields.get(k), str) and "\n" in fields[k]), "")
    if trace and trace.strip() not in text:
        text = f"{text.rstrip()}\n{trace}"
    return Wrapped(
        text.removesuffix("\n"),
        _time(fields),
        _whole(fields, _RANKS),
        str(next((fields[k] for k in _HOSTS if isinstance(fields.get(k), str)), "")),
        _whole(fields, _PIDS),
        str(found.get("stream", "")),
        "log" in found and not text.endswith("\n"),
    )


def _flat(found: Mapping[str, object], name: str) -> dict[str, object]:
    inner = found.get(name)
    return (
        {f"{name}.{k}" if name == "kubernetes" else str(k): v for k, v in inner.items()}
        if isinstance(inner, dict)
        else {}
    )


def _whole(fields: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = fields.get(name)
        inner = value.get("id") if isinstance(value, dict) else value
        if isinstance(inner, int) and not isinstance(inner, bool) and 0 <= inner < 10**9:
            return inner
        if isinstance(inner, str) and inner.isascii() and inner.isdecimal() and len(inner) <= 9:
            return int(inner)
    return None


def _time(fields: Mapping[str, object]) -> str:
    for name in _TIMES:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("timestamp", value.get("repr"))
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            for scale in (1, 1e3, 1e6, 1e9):
                if 1e9 <= value / scale < 2e9:
                    return f"{value / scale:.6f}"
        if isinstance(value, str) and value:
            return value
    return ""


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
