"""Bytes of a log -> its lines: any encoding, colours, progress bars, logs wrapped in JSON, and lines that were handed on in parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    """UTF-8 where it is; else UTF-16 by its mark or its zeros, or one byte for each character."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    sample = data[:_UTF16_SAMPLE]
    for encoding, at in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = sample[at::2].count(0), sample[1 - at :: 2].count(0)
        if len(sample) >= 8 and zeros > 0.4 * len(sample) and not others:
            return data.decode(encoding, "replace")
    text = data.decode("utf-8-sig", "replace")
    broken = text.count("\ufffd")
    if broken and broken > sum(c > "\x7f" for c in text) - broken and not any("\u0080" <= c < "\ufffd" for c in text):
        return data.decode("cp1252", "replace")
    return text


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
