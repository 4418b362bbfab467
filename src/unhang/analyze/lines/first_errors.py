"""Which exception of a log came first, whose it was, and whether it was the end of anything."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from unhang.analyze.failures import is_communication_error
from unhang.model import Frame, LogEvent, Outcome, ProcessExit, RaisedError, Source, user_frames
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.logs.attempts import STILL_PRINTED, moved_after, steps_at_the_end

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

# What a launcher or a driver process raises because a rank failed, and how a rank says that it was told to end.
_REPORTS = lazy_pattern(
    r"^(?:[\w.]*\.)?(?:ChildFailedError|ProcessExitedException|ProcessRaisedException|EngineDeadError|EngineGenerationError|CancelledError|CalledProcessError|PeerFailed|RayActorError|Rendezvous(?:Connection|Closed)Error|ActorDiedError|"
    r"ActorUnavailableError|WorkerCrashedError|HorovodInternalError|TrainingFailedError|BrokenPipeError|ConnectionResetError|ConnectionAbortedError)\b|"
    r"\b[Ss]ee (?:the )?(?:stack trace|root cause|traceback|logs?|error(?: message)?)s? (?:above|for)\b|"
    r"Engine core initialization failed|RPC call to \S+ timed out|"
    r"EOFError: ?(?:$|(?:\[Errno \d+\] )?(?:the )?(?:connection|stream|channel) (?:has been |was |is )?closed\b)|"
    r"Engine loop (?:is not running|has died)|"
    r"\bExecutor failed\.$|Worker failed with error '|ChildProcessError: worker died$|RuntimeError: cancelled$|Error: Worker \d+ has failed\.$|"
    r"\bscheduler died during initialization|there are other ranks that didn't finish|"
    r"\b[Pp]rocess \d+ (?:(?:exited|terminated) with (?:error|exit) code|terminated with signal)\b|"
    r"[Bb]ackground workers? (?:is|are) (?:no longer alive|6 feet under)|"
    r"^AssertionError: assert -?\d{1,3} == 0\b"  # pytest's word on the exit code of what a test had started
)
_ASKED_TO_END = lazy_pattern(r"^(?:[\w.]*\.)?(?:KeyboardInterrupt|SystemExit|SignalException|SignalInterrupt)\b")
# A rank that lost a peer prints a step or so that it had made before.
_FURTHER, _MINUTES_NS = 2, 120_000_000_000
_FATAL = (
    "ending.",
    "elastic.",
    "launchers.",
    "launcher.",
    "watchdog.",
    "python.unhandled",
    "python.fatal",
    "python.spawned",
    "native.",
)
_ERROR_LINE = lazy_pattern(
    r"Traceback \(|[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b|During handling|The above exception"
)
# As C++'s loggers head a line: the status of a library that stands in it (`IOError: ...`) is no exception of Python.
_BY_LIBRARY = lazy_pattern(r"^(?:\[[^\]]{1,80}\] |[IWEF]\d{4} [\d:. ]{1,40})?\w{1,60}\.(?:cc|cpp|h):\d{1,6}(?:\]|:) ")
_NUMBERS = lazy_pattern(r"0x[0-9a-f]+|\d+")
# torch's checkpoints raise on every rank what some ranks met, and name these.
_GATHERED = lazy_pattern(r"^CheckpointException ranks:dict_keys\(\[((?:\d{1,7}(?:, )?)+)\]\)")
# Lines of other ranks may still come after the last line of a rank whose lines bear no name.
_MOST_AFTER, _MOST_AFTER_FATAL = 2, 40
_MOST_RANKS = 64


class SeenError(NamedTuple):
    """One exception in the order of the log. `kind`: primary, echo, told (to end).

    `frames` are innermost first. `is_line`: there is no traceback, only the line that ends one.
    """

    rank: int | None
    error: RaisedError
    order: int
    kind: str
    is_line: bool = False

    @property
    def text(self) -> str:
        """Type and message."""
        return self.error.text

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Where it was raised, innermost first."""
        return self.error.frames

    @property
    def source(self) -> Source:
        """Where it stands in the log."""
        return self.error.source

    def is_like(self, other: SeenError) -> bool:
        """Whether both are the same exception, apart from numbers in the message, or were raised by the same line of the program."""
        if self.error.type != other.error.type or self.kind != other.kind:
            return False
        line = next(iter(user_frames(self.frames)), None)
        is_same_line = line is not None and line == next(iter(user_frames(other.frames)), None)
        return is_same_line or _bare(self.error.message) == _bare(other.error.message)


def _bare(message: str) -> str:
    return _NUMBERS.sub("#", message.split("\n", 1)[0])[:160]


def kind_of_error(error: RaisedError) -> str:
    """Whether an exception may be where it began, reports what another process did, or was asked for, as what is raised on the way out is."""
    text = error.text
    if any(_ASKED_TO_END.match(first.text) for first in (error, *error.before[:1])):
        return "told"
    return "echo" if _REPORTS.search(text) or is_communication_error(error) else "primary"


_known: WeakKeyDictionary[Situation, tuple[SeenError, ...]] = WeakKeyDictionary()


def errors_of(s: Situation) -> tuple[SeenError, ...]:
    """All exceptions that the logs show, in their order."""
    found = _known.get(s)
    if found is None:
        found = _known[s] = tuple(_collect(s))
    return found


def first_error(s: Situation) -> SeenError | None:
    """The first exception that is no echo of another and after which nobody went on as before; one that says something, if any does.

    One that was handled when another was raised is part of that other one; a pool of processes raises its worker's again, as it was.
    """
    handled = {_key(b) for e in errors_of(s) for b in e.error.before if _key(b) != _key(e.error)}
    found = [e for e in errors_of(s) if e.kind == "primary" and _key(e.error) not in handled and not went_on(s, e)]
    return next((e for e in found if e.error.message.strip() or e.error.type != "Exception"), next(iter(found), None))


def like_it(s: Situation, first: SeenError) -> tuple[SeenError, ...]:
    """The same exception wherever it was raised: one fault, several ranks."""
    return tuple(e for e in errors_of(s) if e.is_like(first))


def ranks_of(s: Situation, first: SeenError) -> tuple[int, ...]:
    """The ranks that raised it: told by itself or by the lines; all, where as many raised it; or by the launcher where it saw no more failures than there were errors."""
    same = like_it(s, first)
    if gathered := _GATHERED.search(first.error.message):
        return tuple(sorted({int(n) for n in gathered[1].split(",") if n.strip()}))
    ranks = {e.rank for e in same if e.rank is not None}
    if ranks:
        return tuple(sorted(ranks | _said_alike(s, first)))
    if len(same) == s.case.job.world_size and len(same) <= _MOST_RANKS and not first.is_line:
        return tuple(range(len(same)))
    failed = {r: e.exit for r, e in s.case.ranks.items() if e.exit and e.error is None and _may_have_raised(e.exit)}
    waited = {x.rank for x in s.watchdogs.timed_out if x.events[0].order > first.order}
    failed = {r: x for r, x in failed.items() if r not in waited}  # the watchdog ended those
    times = sorted(x.time_ns for x in failed.values() if x.time_ns)
    if len(failed) == 1 or 0 < len(failed) <= len(same):
        return tuple(sorted(failed))
    earliest = [r for r, x in failed.items() if times and x.time_ns == times[0]]
    if len(earliest) == 1 and len(times) > 1 and times[1] > times[0]:
        return tuple(earliest)
    return () if failed else _ranks_by_others(s, first)


def _said_alike(s: Situation, first: SeenError) -> set[int]:
    """The ranks that printed the same last line of an exception, of whose traceback the log has no more."""
    kind, message = first.error.type.rpartition(".")[2], first.error.message.strip().split("\n", 1)[0]
    lines = s.events.of("python.error_line") if message else ()
    alike = (e for e in lines if e["message"].strip() == message and e["type"].rpartition(".")[2] == kind)
    return {e.rank for e in alike if e.rank is not None}


def _ranks_by_others(s: Situation, first: SeenError) -> tuple[int, ...]:
    """Who raised an exception that bears no rank: whom a launcher saw end first; the one that did not wait with the others."""
    ended = first_to_end(s)
    if ended is not None and ended.order > first.order and ended.rank is not None:
        return (ended.rank,)
    waited = {x.rank for x in s.watchdogs.timed_out if x.rank is not None and x.events[0].order > first.order}
    if len(waited) < 2 or waited != {*s.watchdogs.ranks, *s.watchdogs.seen}:
        return ()
    silent = set(range(s.case.job.world_size or max(waited) + 1)) - waited
    return tuple(silent) if len(silent) == 1 else ()


def first_to_end(s: Situation) -> LogEvent | None:
    """The line in which a launcher names the rank that ended first."""
    return s.events.first("ending.mpirun_exit", "ending.mpirun", "ending.shard")


def _may_have_raised(end: ProcessExit) -> bool:
    """Python leaves with a code of its own; an exception of C++, also at the end of a process that has raised one, aborts it."""
    return (end.code or 0) > 0 or end.code == -signal.SIGABRT


def has_fatal_end(s: Situation) -> bool:
    """Whether anything but exceptions says that the job failed or hung."""
    if s.case.job.exit_code not in (0, None) or s.case.hang is not None:
        return True
    if any(e.says == "hang" for e in s.events):
        return True
    ends = [e for e in s.events.of(*_FATAL) if e.says]
    is_seen = any(e.exit and e.exit.code for e in s.case.ranks.values())
    return (bool(ends) or is_seen) and not (ends and is_log_only(s) and went_further(s.events, ends[-1]))


def went_further(events: Iterable[LogEvent], end: LogEvent) -> bool:
    """Whether the training came further after the end of a process, as it does when that is replaced: later steps, or steps minutes later."""
    moves = [e for e in events if e.is_progress]
    steps = [(e.order, e.number("step")) for e in moves if e.kind == "progress.step"]
    before = [n for order, n in steps if n is not None and order < end.order]
    after = [n for order, n in steps if n is not None and order > end.order]
    if before and after and max(after) - max(before) >= _FURTHER:
        return True
    later = [e.time_ns for e in moves if e.order > end.order and e.time_ns is not None]
    return end.time_ns is not None and sum(t > end.time_ns + _MINUTES_NS for t in later) >= _FURTHER


def is_log_only(s: Situation) -> bool:
    """Whether nothing but logs is known: no recorded calls, no stacks of their own, no watcher."""
    if len(s.case.calls) or s.case.hang is not None or s.case.job.ended_by_us or has_own_stacks(s):
        return False
    return not any(e.initialized or (e.exit and e.exit.text != SEEN_BY_LAUNCHER) for e in s.case.ranks.values())


def has_own_stacks(s: Situation) -> bool:
    """Whether there are stacks of ranks other than those that a process prints of itself, into a log or a file of its own."""
    return any(e.stacks and e.stacks[0].source.reader != "faulthandler" for e in s.case.ranks.values())


def went_on(s: Situation, error: SeenError) -> bool:
    """Whether the program went on after an exception: it was handled, whatever it was."""
    if error.error.source.reader not in ("output", "log"):
        return False
    after = moved_after(s.events, error.order, error.rank)
    if error.rank is not None and after:
        return after > 1
    if not has_fatal_end(s) and s.events.has("work.ended") and _printed_on(s, error):
        return True
    return after > (_MOST_AFTER_FATAL if has_fatal_end(s) else _MOST_AFTER)


def outlived(s: Situation, event: LogEvent) -> bool:
    """Whether the training moved on after a line that says that something failed, further than other ranks print late: nothing ended by it."""
    if event.source.reader != "output" or not is_log_only(s):
        return False
    return moved_after(s.events, event.order) > (_MOST_AFTER_FATAL if has_fatal_end(s) else _MOST_AFTER)


def by_the_log(s: Situation, is_explained: bool, handled: bool = False) -> Outcome:
    """What became of a job of which nothing but its log tells: failed, unless it went on; going on, where its last lines show that.

    `handled`: it speaks of failures, and the job did not fail if the program went on after each of them.
    """
    if handled and not is_explained and given_up(s):
        return Outcome.UNKNOWN
    if handled and (not is_log_only(s) or has_fatal_end(s)):
        return Outcome.CRASH
    said = [e for e in s.events if e.says] if handled else []
    if not all(went_on(s, error) for error in errors_of(s)) or any(
        moved_after(s.events, e.order) <= STILL_PRINTED for e in said
    ):
        return Outcome.CRASH
    moves = not is_explained and s.case.hang is None and steps_at_the_end(tuple(s.events), s.case.log)
    return Outcome.MOVES if moves else Outcome.UNKNOWN


def given_up(s: Situation) -> bool:
    """Whether all that tells of a failure is a scheduler's word on the end that somebody at the terminal had asked for.

    He mostly has seen the job stand still, or is only through with it: neither is a failure.
    """
    hand, said = s.events.first("ending.given_up"), [e for e in s.events if e.says == "crash"]
    is_of_it = hand is not None and all(e.kind == "ending.cancelled" and e.order > hand.order for e in said)
    return is_of_it and not errors_of(s)


def _printed_on(s: Situation, error: SeenError) -> bool:
    """Whether the rank that raised it printed a line of its own after it, which is no part of another traceback."""
    later = (x for x in s.case.log[error.order + 1 :] if error.rank is None or x.rank == error.rank)
    return any(x.text[:1].isalpha() and not _ERROR_LINE.match(x.text) for x in later)


def _collect(s: Situation) -> Iterable[SeenError]:
    if s.case.job.exit_code == 0:
        return ()
    place = {(line.source.path, line.source.line): i for i, line in enumerate(s.case.log)}
    raised: list[tuple[int | None, RaisedError]] = []
    for rank, evidence in s.case.ranks.items():
        raised.extend(
            (rank, e) for e in (*(h for h in evidence.handled if _from_log(h)), evidence.error) if e is not None
        )
    if all(_from_log(e) for _, e in raised):
        raised.extend((None, e) for e in s.case.loose_errors)
    found = [SeenError(rank, e, _order(e, place), kind_of_error(e)) for rank, e in raised]
    found.extend(_lines(s, [e for _, e in raised]) if all(_from_log(e) for _, e in raised) else ())
    return sorted(found, key=lambda e: (e.order, -1 if e.rank is None else e.rank))


def _from_log(error: RaisedError) -> bool:
    return error.source.reader == "output"


def _order(error: RaisedError, place: Mapping[tuple[str, int | None], int]) -> int:
    return place.get((error.source.path, error.source.line), error.source.line or 0)


def _lines(s: Situation, raised: Sequence[RaisedError]) -> Iterable[SeenError]:
    """Exceptions of which the log holds only the last line, and those that others followed in a chain."""
    known, chained = {_key(e) for e in raised}, {_key(e): e for last in raised for e in last.before}
    lines = s.events.of("python.error_line", "python.interrupted", "python.swallowed")
    for i, event in enumerate(lines):
        if event.kind == "python.swallowed" or (i and lines[i - 1].kind == "python.swallowed"):
            continue  # Python could not raise it
        if event.kind == "python.error_line" and _BY_LIBRARY.match(event.text):
            continue
        error = _error_of(event)
        if (key := _key(error)) not in known:
            frames = chained[key].frames if key in chained else ()
            seen = replace(error, frames=frames)
            yield SeenError(event.rank, seen, event.order, kind_of_error(seen), is_line=not frames)


def _key(error: RaisedError) -> tuple[str, str]:
    return error.type.rsplit(".", 1)[-1], error.message.split("\n", 1)[0][:60]


def _error_of(event: LogEvent) -> RaisedError:
    source = Source("log", event.source.path, event.source.line)
    return RaisedError(
        event["type"] or "KeyboardInterrupt", event["message"].strip(), event.time_ns or 0, (), source=source
    )
