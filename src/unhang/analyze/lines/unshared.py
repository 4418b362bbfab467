"""What processes took each for itself, or one for all: names with the time in them, and devices that were not shared out as was meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.by_kind import Events
from unhang.analyze.lines.own_lines import OwnLine, own_lines
from unhang.model import LogEvent
from unhang.model.lazy_pattern import lazy_pattern

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


_IN_USE_MIB, _IDLE_MIB = 2048, 100


class Alone(NamedTuple):
    """The one `device` of several, `asked`, that is in use."""

    device: str
    asked: int
    events: Sequence[LogEvent]


def alone_in_use(events: Events) -> Alone | None:
    """The one device in use where several were asked for and the others are empty, in a job that ran out of device memory."""
    asked = {len((e["devices"] or e["devices_"]).split(",")) for e in events.of("device.asked")}
    used = {e["index"]: e for e in events.of("device.in_use")}
    full = [e for e in used.values() if (e.number("used") or 0) >= _IN_USE_MIB]
    idle = [e for e in used.values() if (e.number("used") or 0) <= _IDLE_MIB]
    if asked != {len(used)} or len(full) != 1 or len(idle) != len(used) - 1 or not events.has("oom.device"):
        return None
    return Alone(full[0]["index"], len(used), (*events.of("device.asked")[:1], *full, *idle))


_ANOTHER, _MOST_LINES = lazy_pattern(r"\b(?:cuda|npu|xpu):[1-9]\d?\b"), 4000


def on_one_device(s: Situation) -> Sequence[LogEvent]:
    """The lines in which several local ranks name the same device as theirs, where another line names a second device: each does not see just one."""
    told = {e["local_rank"]: e for e in s.events.of("device.of_local_rank")}
    if len(told) < 2 or len({e["device"] for e in told.values()}) != 1:
        return ()
    return list(told.values()) if any(_ANOTHER.search(x.text) for x in s.case.log[:_MOST_LINES]) else ()


def computing_on_one(events: Events) -> Sequence[LogEvent]:
    """The device that several ranks took for want of another word, and the processes that a table shows on one device alone, at least as many.

    Ranks that each see one device call it by the same number, and many a healthy rank leaves a context on the first device, too: neither is enough.
    """
    guessed = {e.rank: e for e in events.of("device.guessed") if e.rank is not None and e["device"]}
    seen: dict[str, set[str]] = {}
    apps = events.of("device.app")
    for e in apps:
        seen.setdefault(e["pid"] or e["pid_"], set()).add(e["device"] or e["index"])
    is_one = len({e["device"] for e in guessed.values()}) == 1 and len(set().union(*seen.values())) == 1
    return (*guessed.values(), *apps[:4]) if is_one and 1 < len(guessed) <= len(seen) else ()


_WRITES = lazy_pattern(
    r"\b(?:(?:download|extract|unpack|unzip|untar|decompress|writ|updat|convert|sav|creat|generat|preprocess|prepar|dump)(?:ing|ed|es)|wrote|written)\b"
    r".{0,200}?\b(?:to|into|in|at)[: ]+['\"]?(?P<path>(?:\.{0,2}/|~/|[\w.-]+/)[\w./-]{1,200})",
    re.IGNORECASE,
)
_BROKEN = lazy_pattern(
    r"end-of-stream marker|unexpected end of (?:data|file)|BadZipFile|not a zip file|not a gzip file|failed finding central directory"
    r"|(?:archive|zip|file|header)\b.{0,40}\b(?:corrupt\w*|truncated|incomplete)|\bcorrupted\b|Ran out of input|pickle data was truncated"
    r"|UnpicklingError(?!: Weights only load failed)"
    r"|Error -3 while decompressing|CRC check failed|(?:hash|checksum|md5)\b.{0,40}\b(?:mismatch|not match)|file too short|MetadataIncompleteBuffer"
    r"|JSONDecodeError|Expecting value: line|Extra data: line|Unterminated string starting|Expecting (?:',' delimiter|property name)"
)
_ANY_PATH = lazy_pattern(r"(?:\.{0,2}/|~/|\w[\w.-]*/)[\w.-]+(?:/[\w.-]+)*")


class Written(NamedTuple):
    """A file or folder that several ranks said they write: the last such line of each."""

    path: str
    lines: Sequence[OwnLine]


def written_by_several(s: Situation, error: str, ranks: Sequence[int], order: int) -> Written | None:
    """What several ranks said they write, where an exception finds such a file broken: one in it, or, where it names none, that of its own rank."""
    if not _BROKEN.search(error):
        return None
    told: dict[str, dict[int, OwnLine]] = {}
    for line in own_lines(s):
        if line.rank is not None and line.order < order and (found := _WRITES.search(line.line.text)):
            told.setdefault(found["path"].rstrip("/."), {})[line.rank] = line
    named = [m[0] for m in _ANY_PATH.finditer(error)]
    for path, lines in told.items():
        is_it = any(n == path or n.startswith(f"{path}/") or path.endswith(f"/{n}") for n in named)
        if len(lines) > 1 and (is_it or (not named and not set(ranks).isdisjoint(lines))):
            return Written(path, [lines[r] for r in sorted(lines)])
    return None
