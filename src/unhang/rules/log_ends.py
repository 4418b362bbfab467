"""What the lines of a log tell of a program's own end: that its work was done, and that it could not end then."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from unhang.analyze.lines.first_errors import errors_of
from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.rules.log_lines import seconds_between

SIGNALS = ("ending.death_signal", "ending.got_signal", "launchers.death_signal", "elastic.death_signal")
_END_TAKES_S = 240.0  # at most
_TRACEBACK = 60  # lines


def _all_done(s: Situation) -> tuple[LogEvent, ...]:
    """The last of the lines with which each of several ranks said that it is done; nothing as long as one has not."""
    lines = s.events.of("progress.rank_done")
    done = {rank for e in lines if (rank := e.number("rank") if e["rank"] else e.number("rank_")) is not None}
    world = s.case.job.world_size or len(done)
    return (lines[-1],) if world > 1 and done == set(range(world)) else ()


def _is_interrupted_as_it_joins(s: Situation) -> bool:
    """Whether the interrupt came to a process that waited for the end of those that it had spawned."""
    told = (e.frames for e in errors_of(s) if e.error.type.endswith("KeyboardInterrupt"))
    return any(f.function == "join" and f.file.endswith("torch/multiprocessing/spawn.py") for fs in told for f in fs)


def _interrupted_at_exit(s: Situation) -> list[LogEvent]:
    """The interrupts that met a process in what Python runs when a program is over."""
    at_exit = [e.order for e in s.events.of("python.swallowed") if e["at_exit"]]
    return [e for e in s.events.of("python.interrupted") if any(0 < e.order - n < _TRACEBACK for n in at_exit)]


def _waited_for_an_end(s: Situation, start: Sequence[LogEvent]) -> list[LogEvent]:
    """What a parent says behind the last word of the training: that it waits for the process, for longer than an end takes."""
    told = s.events.of("ending.looked_at") if start else ()
    return [e for e in told if e.order > start[-1].order and (e.number("waited_s") or 0) > _END_TAKES_S][-1:]


def came_to_its_end(s: Situation) -> tuple[LogEvent, ...]:
    """The line that says that the process group is being destroyed, with the limit that was hit after it, and no work between.

    Where only the end of the training is told, the limit has to be the watchdog's own: a collective that times out there, ranks still made.
    """
    start, seen = s.events.of("ending.destroying"), ("ending.listed", "ending.looked_at", "ending.remark")
    hung = [e for e in s.events if e.says == "hang" and e.kind not in seen]
    start = start or _all_done(s) or s.events.of("ending.program_over")
    if start and not hung:  # somebody had to end it, or saw that it was still there
        hung = list(s.events.of(*SIGNALS, "ending.cancelled", "python.interrupted"))
        hung = hung or [e for e in s.events.of(*seen) if e.order > start[-1].order]
    elif not (start or hung) and s.events.has("ending.cleaning") and _is_interrupted_as_it_joins(s):
        start, hung = s.events.of("ending.cleaning"), list(s.events.of("python.interrupted"))
    elif not start:
        start = s.events.of("ending.finished", "work.ended", "ending.not_destroyed")
        if any(e.kind != "watchdog.stuck" for e in hung):
            return ()
        cancelled = s.events.of("ending.cancelled") if start else ()
        hung = hung or [e for e in cancelled if seconds_between(start[0], e) > _END_TAKES_S]
        hung = hung or _waited_for_an_end(s, start)
        if start and not hung and (interrupted := _interrupted_at_exit(s)) and interrupted[0].order > start[-1].order:
            return (start[-1], interrupted[0])  # whatever it saved between, it was out of its program
    if not start or not hung or hung[0].order < start[-1].order:
        return ()
    work = s.events.of("work.", "progress.", "learn.")
    between = [e for e in work if start[-1].order < e.order < hung[0].order and e.kind != "work.ended"]
    return () if between else (start[-1], hung[0])


def signal_name(number: int | None) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
