"""Weighs what the files of one process say: one RankEvidence per rank; how it ended, by several witnesses; to which attempt of the job it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.model import (
    PendingCall,
    ProcessExit,
    ProcessState,
    RaisedError,
    RankEvidence,
    ThreadStack,
    Unavailable,
    user_frames,
)
from unhang.model.evidence import SEEN_BY_LAUNCHER, SENT_BY_ITSELF, Look
from unhang.model.frames import KernelWait, ThreadWait, WaitingTask
from unhang.read.files import frame_triples, real, text, texts, whole
from unhang.read.launchers import RankExit
from unhang.read.rank_folder import RankRecord, raised_error

if TYPE_CHECKING:
    from unhang.read.output_log import OutputLog

_MOST_WAITS = 64
_AT_ONCE_NS = 5_000_000_000


def evidence_of(
    record: RankRecord, summary: RankExit | None = None, logged: Sequence[RaisedError] = ()
) -> RankEvidence:
    """The evidence on one rank.

    Args:
        record: its files.
        summary: how the launcher saw it end.
        logged: exceptions that the output shows under this rank, in the order printed.
    """
    page, proc = record.page, record.proc_fields
    error, handled = record.error, record.handled
    if error is None and logged:
        error = logged[-1]
        handled = (*handled, *(replace(e, handled=True) for e in logged[:-1]))
    end = exit_of(record, summary)
    if error is not None and record.error_thread not in ("", "MainThread") and end is not None and end.code == 0:
        handled = (*handled, replace(error, handled=True))  # one thread ended by it, the program did not
        error = None
    monotonic_ns = whole(proc, "taken_monotonic_ns")
    return RankEvidence(
        identity=record.identity,
        stacks=stacks_of(record),
        state=_state(proc),
        error=error,
        handled=handled,
        held=record.held,
        twins=record.twins,
        exit=end,
        pending=page.pending if page else tuple(_seen_transfer(record)),
        steps=page.steps if page else None,
        skipped_steps=page.skipped_steps if page else 0,
        thread_waits=tuple(_thread_waits(record.waits_fields)),
        tasks=tuple(_tasks(record.waits_fields)),
        kept=tuple(raised_error(e, "waits.json", True) for e in _objects(record.waits_fields, "kept")),
        in_handler=text(record.waits_fields, "in_handler"),
        phase=page.phase if page else "",
        initialized=page.initialized if page else None,
        heartbeat_age_s=_age_s(monotonic_ns, page.heartbeat_ns) if page else None,
        quiet_s=real(proc, "quiet_s"),
        usual_quiet_s=real(proc, "usual_quiet_s") or 0.0,
        look=_look(record.look_fields),
        facts=record.facts,
        native=record.native,
        variables=record.variables,
        samples=page.samples if page else 0,
        tokens=page.tokens if page else 0,
        unavailable=tuple(record.absent),
    )


def stacks_of(record: RankRecord) -> tuple[ThreadStack, ...]:
    """The stacks at the fatal signal, else py-spy's, else those at the signal that ended the job, or asked for last."""
    at_signal = record.fatal.threads if record.fatal is not None else ()
    others = (*record.at_interrupt[:1], *reversed(record.fault_dumps))
    whole = (
        d.threads for d in others if any(t.is_main and t.frames for t in d.threads)
    )  # the last may be half written
    found = at_signal or record.stacks or next(whole, others[0].threads if others else ())
    kernel = record.proc_fields.get("threads")
    waits = kernel if isinstance(kernel, dict) else {}
    return tuple(_complete(s, record, waits) for s in found)


def _complete(stack: ThreadStack, record: RankRecord, kernel: Mapping[object, object]) -> ThreadStack:
    """A stack with what other files say of its thread."""
    of_rank = stack.process_id in (None, record.identity.pid)
    number = record.identity.pid if stack.is_main and of_rank else stack.os_thread_id
    fields = kernel.get(str(number))
    wait = None
    if isinstance(fields, dict):
        pids = (int(n) if (n := text(fields, key)).isdecimal() else 0 for key in ("holder", "peer"))
        wait = KernelWait(text(fields, "call"), text(fields, "file"), *pids)
    ident = stack.ident or (record.main_thread_id if stack.is_main else None)
    work = next((g for g in _objects(record.waits_fields, "given") if whole(g, "thread") == ident), {})
    # A fork's threads have the same numbers.
    is_own = ident is not None and of_rank
    given = frame_triples(work) if is_own else ()
    return replace(stack, ident=ident, kernel=wait, given=given)


def _objects(fields: Mapping[str, object], key: str) -> list[dict[object, object]]:
    value = fields.get(key)
    return [v for v in value[:_MOST_WAITS] if isinstance(v, dict)] if isinstance(value, list) else []


def _thread_waits(fields: Mapping[str, object]) -> Iterator[ThreadWait]:
    for wait in _objects(fields, "waits"):
        if (thread := whole(wait, "thread")) is not None:
            yield ThreadWait(thread, text(wait, "kind"), _idents(wait.get("by")), text(wait, "name"))


def _idents(value: object) -> tuple[int, ...]:
    return tuple(v for v in value if type(v) is int) if isinstance(value, list) else ()


def _tasks(fields: Mapping[str, object]) -> Iterator[WaitingTask]:
    for task in _objects(fields, "tasks"):
        yield WaitingTask(text(task, "name"), frame_triples(task), texts(task, "awaits"))


def _look(fields: Mapping[str, object]) -> Look | None:
    if not fields:
        return None
    moved, call, on = fields.get("moved"), fields.get("call"), fields.get("device")
    device = on if isinstance(on, dict) else {}
    return Look(
        whole(fields, "looks") or 0,
        real(fields, "seconds") or 0.0,
        moved if isinstance(moved, bool) else None,
        text(fields, "how"),
        fields.get("changed") is True,
        isinstance(call, dict) and call.get("has_group") is True,
        tuple((text(w, "peer"), whole(w, "bytes") or 0) for w in _objects(fields, "unsent")),
        whole(device, "device"),
        whole(device, "busy"),
        whole(call, "group_number") if isinstance(call, dict) else None,
    )


def _seen_transfer(record: RankRecord) -> Iterator[PendingCall]:
    """The send or receive in which the main thread was seen from outside."""
    call = record.look_fields.get("call")
    if isinstance(call, dict) and text(call, "kind") and (peer := whole(call, "peer")) is not None:
        main = next((s for s in record.stacks if s.is_main), None)
        frames = user_frames(main.frames) if main else ()
        yield PendingCall(text(call, "kind"), 1, "", peer, 0, None, frames, tag=whole(call, "tag") or 0)


def _age_s(now_ns: int | None, then_ns: int) -> float | None:
    return max(0.0, (now_ns - then_ns) / 1e9) if now_ns and then_ns else None


def _state(proc: dict[str, object]) -> ProcessState | None:
    if not proc:
        return None
    died = whole(proc, "died_ns") is not None
    return ProcessState(
        state="gone" if died else text(proc, "state"),
        cpu_share=real(proc, "cpu_share"),
        children_share=real(proc, "children_share"),
        child_writes=proc.get("child_writes") is True,
        child_asks=proc.get("child_asks") is True,
        wchan=text(proc, "wchan"),
        open_fds=whole(proc, "open_fds"),
        fd_limit=whole(proc, "fd_limit"),
        rss_bytes=whole(proc, "rss_bytes"),
        oom_kills=whole(proc, "oom_kills"),
    )


def exit_of(record: RankRecord, summary: RankExit | None = None) -> ProcessExit | None:
    """The end of a process; None while nothing says that it ended.

    The more direct witness wins: a signal, the record of os._exit, the launcher's summary, the end of the program, and
    last that the process was simply gone.
    """
    own = text(record.exit_fields, "kind")
    return (
        _by_signal(record, summary)
        or (_recorded(record, "os._exit") if own == "os._exit" else None)
        or _by_code(record, summary)
        or (_recorded(record, "exit") if own and own != "kill" else None)
        or _without_witness(record)
    )


def _died_ns(record: RankRecord) -> int:
    return whole(record.proc_fields, "died_ns") or 0


def _by_signal(record: RankRecord, summary: RankExit | None) -> ProcessExit | None:
    code, fatal = whole(record.proc_fields, "exit_code"), record.fatal
    if fatal is not None:
        number = fatal.signal_number
        current = fatal.current or next((t for t in fatal.threads if t.is_main), None)
        frames = current.frames if current else ()
        known = -number if number else (code if code is not None and code < 0 else None)
        return ProcessExit("signal", known, _died_ns(record), frames, fatal.reason or "")
    seen = code if code is not None or summary is None else summary.code
    if seen is not None and seen < 0 and (sent := _sent_by_itself(record, seen)) is not None:
        return sent
    if code is not None and code < 0:
        return ProcessExit("signal", code, _died_ns(record))
    if code is None and summary is not None and summary.code is not None and summary.code < 0:
        return ProcessExit("signal", summary.code, _died_ns(record) or summary.time_ns, text=SEEN_BY_LAUNCHER)
    return None


def _sent_by_itself(record: RankRecord, code: int) -> ProcessExit | None:
    """The signal that ended it, where it sent that itself just before."""
    fields, died_ns = record.exit_fields, _died_ns(record)
    sent_ns = whole(fields, "time_ns") or 0
    is_it = text(fields, "kind") == "kill" and whole(fields, "code") == code and died_ns - sent_ns < _AT_ONCE_NS
    return ProcessExit("signal", code, died_ns or sent_ns, frame_triples(fields), SENT_BY_ITSELF) if is_it else None


def _by_code(record: RankRecord, summary: RankExit | None) -> ProcessExit | None:
    """An exit with a code that the agent or the launcher saw, with the stack of sys.exit where it was recorded."""
    code = whole(record.proc_fields, "exit_code")
    time_ns = _died_ns(record)
    if code is None and summary is not None:
        code, time_ns = summary.code, time_ns or summary.time_ns
    if code is None:
        return None
    own = _recorded(record, "exit") if record.exit_fields else None
    return ProcessExit("exit", code, own.time_ns or time_ns if own else time_ns, own.frames if own else ())


def _recorded(record: RankRecord, kind: str) -> ProcessExit:
    """What the process itself wrote; an uncaught exception in the main thread means exit code 1."""
    fields = record.exit_fields
    code = whole(fields, "code")
    if code is None and kind == "exit" and record.error is not None and record.error_thread == "MainThread":
        code = 1
    return ProcessExit(kind, code, whole(fields, "time_ns") or _died_ns(record), frame_triples(fields))


def _without_witness(record: RankRecord) -> ProcessExit | None:
    if record.page is not None and record.page.ended:
        return ProcessExit("exit", None, _died_ns(record))
    if _died_ns(record) or text(record.proc_fields, "state") in ("gone", "Z", "X"):
        return ProcessExit("vanished", None, _died_ns(record))
    return None


Processes = dict[int, RankRecord]
"""The processes of one attempt, by rank."""

ANOTHER_WITH_ITS_RANK = "another process of this rank started while it ran"
_LEFT_OUT = b"... unhang: output left out here ..."
_NOTICED_LATE_NS = 1_000_000_000  # an end is noted a little after it
_OF_AN_END = ("elastic.worker_failed", "elastic.closing_signal")


def attempts_of(records: Mapping[int, Sequence[RankRecord]]) -> tuple[list[Processes], list[Unavailable]]:
    """The processes of each attempt, the last attempt last; and the processes that belong to none.

    The restart count of the launcher tells attempts apart, and the times of ends and starts where a program starts its ranks
    again by itself. A rank that goes on while another one is started anew belongs to the last attempt.
    """
    absent: list[Unavailable] = []
    left = {rank: _one_after_another(rank, found, absent) for rank, found in records.items()}
    attempts: list[Processes] = []
    while left:
        last = {rank: found[-1] for rank, found in left.items()}
        renewed = [(found[-1], found[-2]) for found in left.values() if len(found) > 1]
        if renewed:
            newest, before = max(renewed, key=lambda pair: _order(pair[0]))
            last = {rank: record for rank, record in last.items() if not _is_earlier(record, newest, before)}
        attempts.append(dict(sorted(last.items())))
        rest = {rank: [r for r in found if r is not last.get(rank)] for rank, found in left.items()}
        left = {rank: found for rank, found in rest.items() if found}
    return attempts[::-1], absent


def began_ns(attempt: Processes) -> int:
    """When the first process of an attempt that is known started; 0 where none tells."""
    return min((t for r in attempt.values() if (t := r.identity.started_ns)), default=0)


def _order(record: RankRecord) -> tuple[int, int, str]:
    return record.identity.restart, record.identity.started_ns, record.path


def _one_after_another(rank: int, records: Sequence[RankRecord], absent: list[Unavailable]) -> list[RankRecord]:
    """The processes of a rank of which each had ended before the next one started; of two at once the later one."""
    found: list[RankRecord] = []
    for record in sorted(records, key=_order):
        if found and not _is_followed_by(found[-1], record):
            old = found.pop()
            is_same = old.identity == record.identity
            if not is_same and _has_started(old, record):
                old, record = record, old
            elif not is_same and _lived_together(old, record):
                record.twins = (*old.twins, old.identity.pid or 0)
            reason = "it was given twice" if is_same else ANOTHER_WITH_ITS_RANK
            absent.append(Unavailable(f"process {old.identity.pid} of rank {rank}", reason))
        found.append(record)
    return found


def _has_started(old: RankRecord, new: RankRecord) -> bool:
    """Whether a rank that has come through init_process_group started a program which has its variables, and so its RANK."""
    joined = [r.page is not None and r.page.initialized is True for r in (old, new)]
    return joined == [True, False] and new.identity.pid in {s.process_id for s in old.stacks}


def _is_followed_by(old: RankRecord, new: RankRecord) -> bool:
    if old.identity == new.identity:
        return False
    if old.identity.restart != new.identity.restart:
        return True
    return 0 < _ended_ns(old) <= new.identity.started_ns + _NOTICED_LATE_NS


def _lived_together(old: RankRecord, new: RankRecord) -> bool:
    """Whether two processes with one rank came to the start at the same time, in the same attempt of the same launcher."""
    pages = [r.page.pending if r.page else () for r in (old, new)]
    if not all(any(c.kind == "init_process_group" for c in calls) for calls in pages):
        return False  # what a rank starts may have its RANK too
    of = [(r.identity.host, r.identity.restart) for r in (old, new)]
    died_ns = whole(old.proc_fields, "died_ns")
    return of[0] == of[1] and bool(old.proc_fields) and (died_ns is None or died_ns > new.identity.started_ns > 0)


def _is_earlier(record: RankRecord, newest: RankRecord, before: RankRecord) -> bool:
    """Whether the last process of a rank had its end before `newest` followed `before`, on another rank."""
    if record is newest:
        return False
    mine, its = record.identity, newest.identity
    if mine.restart < its.restart and mine.host == its.host:
        return True
    has_ended = 0 < _ended_ns(record) <= its.started_ns + _NOTICED_LATE_NS
    return has_ended and mine.started_ns < (_ended_ns(before) or its.started_ns)


def _ended_ns(record: RankRecord) -> int:
    """When a process ended, by its own word or as it was seen; 0 where nothing tells that it has."""
    times = (whole(record.exit_fields, "time_ns"), whole(record.proc_fields, "died_ns"))
    return min((t for t in times if t), default=0)


def outputs_of(logs: Iterable[tuple[Path, OutputLog]], attempts: Sequence[Processes]) -> list[tuple[OutputLog, ...]]:
    """The part of each output that belongs to each attempt."""
    found: list[list[OutputLog]] = [[] for _ in attempts]
    for path, log in logs:
        borders = [0, *(_first_line(path, log, attempts, i) for i in range(1, len(attempts))), 0]
        for i in range(1, len(attempts)):
            borders[i] = max(borders[i], borders[i - 1])
        for i, mine in enumerate(found):
            mine.append(log.between(borders[i], borders[i + 1] if i + 1 < len(attempts) else None))
    return [tuple(mine) for mine in found]


def _first_line(path: Path, log: OutputLog, attempts: Sequence[Processes], number: int) -> int:
    """The line with which an attempt begins.

    It comes after what a launcher said of the processes before, and after what had been written when its first process started.
    """
    from unhang.read.logs import events_of

    pids = {r.identity.pid for attempt in attempts[:number] for r in attempt.values()}
    ends = (e for e in events_of(log.lines) if e.kind in _OF_AN_END and e.number("pid") in pids)
    said = max((e.source.line or 0 for e in ends), default=-1) + 1
    here = [r for r in attempts[number].values() if r.path and Path(r.path).parent.parent == path.parent]
    sizes = [r.output_bytes for r in here if r.output_bytes is not None]
    return max(said, _line_at(path, min(sizes)) if sizes else 0)


def _line_at(path: Path, size: int) -> int:
    """The number of the line that begins after so many bytes; 0 where the middle of the output was left out."""
    with suppress(OSError), path.open("rb") as f:
        data = f.read(size)
        return 0 if _LEFT_OUT in data or len(data) < size else data.count(b"\n") + 1
    return 0
