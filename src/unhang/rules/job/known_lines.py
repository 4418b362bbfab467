"""Rules on what a message names by itself: a module that is gone, a cause that the catalogue knows; else the failure's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import PurePath
from typing import NamedTuple

from unhang.analyze.lines.first_errors import SeenError, errors_of, given_up, has_fatal_end, is_log_only, went_further
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Fix, LogEvent, ProcessExit
from unhang.read.logs.catalogue import LAYERS, Row, best_cause, emitter_of, weighed
from unhang.rules.base import AGAIN, Found, Names, rule
from unhang.rules.failure import comes_late, first_exception, found_at_first, in_trouble
from unhang.rules.item_repairs import of_own_size
from unhang.rules.known_repairs import of_error
from unhang.rules.log_lines import found_in, known_of, may_lock_all, only_probed, quote, row_of_exception
from unhang.rules.wording import name_ranks

_TERMINATED = -15  # by the launcher, after another had failed

_MOST_LINES = 3000
_LOCKED = "memlock-limit"
_OF_WORK = ("progress.", "learn.", "work.")
_SAY_THEMSELVES = ("scheduler", "launcher")  # such a line is printed where something has failed, and only there
# Who sees that ranks differ is not who differs.
_BETWEEN_RANKS = (
    "code-divergence",
    "uneven-inputs",
    "size-mismatch",
    "collective-order-race",
    "version-mismatch",
    "p2p-acs-iommu",
)
_BELOW = ("kernel", "driver", "device")
_MOST_AFTER, _MOST_AFTER_FATAL = 2, 40
_MOST_LAST_WORDS = 30
_SEEN_TO_LEAVE = (
    "ending.torchrun",
    "ending.srun_task",
    "ending.spawned",
    "ending.deepspeed",
    "ending.mpirun_exit",
    "ending.child_failed",
)
# A level of a logger where such levels stand, the word with which programs begin what they say at their end, or an exception as Python writes it in code.
_OF_AN_ERROR = re.compile(
    r"(?:^|[\s\[|:(-])(?:ERROR|CRITICAL|FATAL|[Ff]atal|[Ee]rror)(?:[\]):|]| {2}| [-|]) {0,8}\S|^[EF](?:0[1-9]|1[0-2])\d\d \d\d:\d\d:"
    r"|^(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\(['\"]"
)
_PROBLEM = (
    "failure.",
    "nccl.error",
    "nccl.result",
    "python.unhandled",
    "python.fatal",
    "native.",
    "watchdog.",
    "ending.",
    "elastic.worker_failed",
)


class _KnownLine(NamedTuple):
    """A line that names a cause by itself."""

    row: Row
    event: LogEvent

    @property
    def depth(self) -> tuple[int, int]:
        """What is lower in the machine comes first, then what is earlier."""
        return LAYERS.index(self.row.layer), self.event.order


@rule("known-message", names=Names.MESSAGE)
def known_message(s: Situation) -> Found | None:
    """The first line of the lowest layer that names a cause by itself, or the first exception, in a job that went no further."""
    best = min(_known_lines(s), key=lambda t: t.depth, default=None)
    first = first_exception(s)
    known = known_of(first.error) if first is not None else None
    if first is not None and known is not None and not (best and best.depth[0] < LAYERS.index(known[0].layer)):
        row, error = known
        if error is not first.error:
            first = replace(first, error=error, failures=())
        sure = 0.72 if first.failures else 0.5 if comes_late(s, first) else 0.68
        shown = of_error(error, first.frame) or of_own_size(error, first.frame)
        fixes = (shown, "look") if shown is not None else _fixes(row)
        found = found_at_first(s, first, sure, _words(row), cause=row.cause, say="raised", fixes=fixes)
        return replace(found, culprits=()) if row.cause in _BETWEEN_RANKS else found
    if best is None:
        return _last_word_that_names_a_cause(s) if first is None else None
    row, event = best
    same = [e for e in s.events if e.text == event.text or best_cause(e.text) == row][:_MOST_LINES]
    sure = 0.74 if row.layer in _BELOW else 0.7
    if any(e.says == "hang" and e.order < event.order for e in s.events):
        if row.layer in _SAY_THEMSELVES:
            return None  # who ended the job did so after waits had run out
        sure = 0.5  # it may be what became of a wait that had run out
    whose = () if row.cause in _BETWEEN_RANKS else None
    return found_in(s, same, sure, whose, words={**_words(row), "who": _who(event)}, cause=row.cause, fixes=_fixes(row))


def _last_word_that_names_a_cause(s: Situation) -> Found | None:
    """A program that says on a line of its own what an exception would say, and ends."""
    found = ((row, event) for event in _last_words(s) if (row := row_of_exception(event.text)) is not None)
    if (known := next(found, None)) is None:
        return None
    row, event = known
    whose = () if row.cause in _BETWEEN_RANKS else None
    words = {**_words(row), "who": _who(event)}
    return found_in(s, [event], 0.6, whose, words=words, say="last", cause=row.cause, fixes=_fixes(row))


def _words(row: Row) -> dict[str, object]:
    return {"meaning": row.meaning or "the message names its cause", "emitter": row.emitter, "layer": row.layer}


def _who(event: LogEvent) -> str:
    if event.rank is not None:
        return f"{name_ranks((event.rank,))}: "
    return f"{event.host}: " if event.host else ""


def _fixes(row: Row) -> tuple[str | Fix, ...]:
    if not row.fix:
        return ("look",)
    verify = f"{AGAIN}: the line does not come again"
    return (Fix("Do first what the catalogue says of this message", verify, setting=row.fix), "look")


def _known_lines(s: Situation) -> Iterator[_KnownLine]:
    """The lines that name a cause, after which nobody went on, of a job that is in trouble or that they end themselves."""
    is_trouble, ended = in_trouble(s), _last_moves(s)
    seen: set[str] = set()
    for event in s.events:
        if event.text in seen or len(seen) > _MOST_LINES or event.kind.startswith(_OF_WORK):
            continue
        seen.add(event.text)
        row = best_cause(event.text)
        if row is None or not (is_trouble or row.layer in _SAY_THEMSELVES):
            continue
        if row.cause == _LOCKED and may_lock_all(s, (event,)):
            continue
        if event.order >= ended and not only_probed(s, (event,)):
            yield _KnownLine(row, event)


def _last_moves(s: Situation) -> int:
    """The place in the log after which the training moved no more, but for what other ranks print late."""
    moves = [e.order for e in s.events if e.is_progress]
    most = _MOST_AFTER_FATAL if has_fatal_end(s) else _MOST_AFTER
    return moves[-most - 1] if len(moves) > most else -1


@rule("unexplained-failure", names=Names.NOTHING)
def unexplained_failure(s: Situation) -> Found | None:
    """The line with which the job itself says that it failed; nobody is accused."""
    if not s.is_crash or s.is_hang or s.is_interrupted:
        return None
    event = _own_words(s)
    if event is None or (is_log_only(s) and went_further(s.events, event)) or given_up(s):
        return None
    emitter = emitter_of(event.text)
    text = " ".join(event.text.split())[:160]
    row = next(iter(weighed().rows_of(event.text)), None)
    words = {"who": _who(event), "emitter": emitter.name, "layer": emitter.layer, "text": text}
    words["meaning"] = f" {row.meaning[0].upper()}{row.meaning[1:]}" if row is not None and row.meaning else ""
    if emitter.layer == "launcher" and (ended := _seen_to_end(s)):
        code = next(iter(ended.values())).code
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        words |= {"ended": name_ranks(tuple(ended)), "how": how}
        return found_in(s, [event], 0.3, (), words=words, say="seen", fixes=("record", "evidence"))
    return found_in(s, [event, *_next_line(s, event)], 0.3, (), words=words, fixes=("evidence",))


def _seen_to_end(s: Situation) -> dict[int, ProcessExit]:
    """The rank that a launcher saw end first, with its exit; several where it saw them end in the same second."""
    ends = {r: e.exit for r, e in s.case.ranks.items() if e.exit is not None and e.exit.code not in (0, _TERMINATED)}
    first = min((x.time_ns for x in ends.values()), default=0)
    return {r: x for r, x in ends.items() if x.time_ns == first}


def _own_words(s: Situation) -> LogEvent | None:
    """The first exception of a rank's own; else the first line that says what failed, or that something did; launchers come last."""
    ended = _last_moves(s)
    words = [e for e in s.events.of("failure.") if e["message"] and e.order >= ended]
    proving = [e for e in s.events if e.says == "crash" and e.order >= ended]
    if not (words or proving):  # exceptions alone may have been handled
        return None
    errors = [e for e in errors_of(s) if e.kind != "told" and e.order >= ended]
    own = (line for e in errors if e.kind == "primary" for line in _line_of(s, e))
    raised = (line for e in errors for line in _line_of(s, e))
    by_layer = [(emitter_of(e.text).layer in _SAY_THEMSELVES, e) for e in words]
    below, above = ([e for is_above, e in by_layer if is_above is wanted] for wanted in (False, True))
    problems = (e for e in proving if e.kind.startswith(_PROBLEM))
    return next(chain(own, below, _last_words(s), raised, above, problems, proving), None)


def _last_words(s: Situation) -> Iterator[LogEvent]:
    """The lines that call themselves errors right before a launcher saw a process leave with an exit code, the last one first.

    Not those of launchers, nor of a peer that is gone, nor from before the last move.
    """
    ends = s.events.of(*_SEEN_TO_LEAVE)
    end = ends[0].order if ends else 0
    if not end or (ends[0].number("code") or 1) < 0 or any(e.order < end for e in errors_of(s)):
        return
    moved = max((e.order for e in s.events if e.is_progress and e.order < end), default=-1)
    for order in range(end - 1, max(moved, end - _MOST_LAST_WORDS - 1), -1):
        line = s.case.log[order]
        if not _OF_AN_ERROR.search(line.text) or emitter_of(line.text).layer in _SAY_THEMSELVES:
            continue
        if all(row.role != "echo" for row in weighed().rows_of(line.text)[:1]):
            yield LogEvent("failure.last_word", line.text, line.source, order, line.rank, line.host, line.time_ns)


def _line_of(s: Situation, error: SeenError) -> Iterator[LogEvent]:
    """The line that ends its traceback, or is all that there is of it."""
    lines = (e for e in s.events.of("python.error_line") if e.order >= error.order)
    yield from islice((e for e in lines if error.error.type.rpartition(".")[2] in e.text), 1)


def _next_line(s: Situation, event: LogEvent) -> Iterator[LogEvent]:
    """What stands under a heading such as `Last error:`."""
    if event.text.rstrip().endswith(":") and event.order + 1 < len(s.case.log):
        line = s.case.log[event.order + 1]
        if not any(c.isalnum() for c in line.text):
            return
        yield LogEvent(event.kind, line.text, line.source, event.order + 1, line.rank, line.host, line.time_ns)


# Modules that every Python of every build has. Of others (`distutils`, `_ctypes`) a version or a build may have none.
ALWAYS = frozenset(
    {
        "abc", "argparse", "ast", "base64", "codecs", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime", "enum",
        "functools", "glob", "heapq", "importlib", "inspect", "io", "json", "logging", "multiprocessing", "numbers", "operator", "os",
        "pathlib", "pickle", "platform", "queue", "random", "re", "runpy", "shutil", "signal", "socket", "string", "struct", "subprocess",
        "tempfile", "textwrap", "threading", "time", "tokenize", "traceback", "types", "typing", "urllib", "uuid", "warnings", "weakref",
        "zipfile",
    }
)  # fmt: skip
_GONE = re.compile(r"No module named '(\w+)")
_VERSION = re.compile(r"/lib/python(\d\.\d{1,3})/")


@rule("environment-changed")
def environment_changed(s: Situation) -> Found | None:
    """A module that is gone, as the watcher saw it go; or one of Python's own, in a job that began with it: by another version in the traceback, or by steps that it made."""
    for error in errors_of(s):
        gone = _GONE.search(error.text)
        if gone and (seen_to_go := _seen_to_go(s, gone[1])) is not None:
            path, at_s, name = seen_to_go
            why = f"{name} went from {path} {at_s:.0f} s after the start"
            raised = EvidenceLine("exception", error.text[:300], error.source.line)
            ranks = () if error.rank is None else (error.rank,)
            return Found(
                0.97,
                ranks,
                (raised, EvidenceLine(path, why)),
                {"module": gone[1], "why": why},
                "seen",
                is_root=True,
                victims=(),
            )
        if not error.error.type.endswith(("ModuleNotFoundError", "ImportError")) or not gone or gone[1] not in ALWAYS:
            continue
        told = _of_its_job(s, error, "environment.python")
        after = next((found[1] for frame in error.frames if (found := _VERSION.search(frame.file))), "")
        others = [e for e in told if after and e["version"] != after]
        trained = _of_its_job(s, error, "pace.at", "progress.step", "progress.bar")
        if not others and not trained:
            return None
        if others:
            why = f"it told Python {others[0]['version']}, and the traceback comes from {after}"
            words = {"module": gone[1], "before": others[0]["version"], "after": after, "why": why}
        else:
            words = {"module": gone[1], "why": "it had trained"}
        seen = quote([*others[:1], *trained[-1:]])
        place = f"{PurePath(error.source.path).name or 'log'}:{error.source.line}"
        raised = EvidenceLine(place, error.text[:300], error.source.line)
        ranks = () if error.rank is None else (error.rank,)
        return Found(
            0.95 if others else 0.85,
            ranks,
            (raised, *seen),
            words,
            "version" if others else "",
            is_root=True,
            victims=(),
        )
    return None


def _seen_to_go(s: Situation, module: str) -> tuple[str, float, str] | None:
    """The folder from which a module went while the job ran, when, and its name there."""
    for change in s.case.course.changed if s.case.course else ():
        name = next((n for n in change.gone if n == module or n.startswith((f"{module}.", f"{module}-"))), None)
        if name is not None:
            return change.path, change.at_s, name
    return None


def _of_its_job(s: Situation, error: SeenError, *kinds: str) -> list[LogEvent]:
    """Lines of the job in which an exception was raised: of files named alike (`job.err`, `job.out`) where there are more than two."""
    stem = PurePath(error.source.path).stem
    is_one = len({line.source.path for line in s.case.log}) <= 2
    return [e for e in s.events.of(*kinds) if is_one or PurePath(e.source.path).stem == stem]
