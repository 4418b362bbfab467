"""Weighs what the files of one process say: one RankEvidence per rank; how it ended, by several witnesses; which ranks stand for the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from unhang.model import (
    Case,
    CollectiveTable,
    PendingCall,
    ProcessExit,
    ProcessGroup,
    ProcessState,
    RaisedError,
    RankEvidence,
    ThreadStack,
    Unavailable,
    user_frames,
)
from unhang.model.evidence import SEEN_BY_LAUNCHER, SENT_BY_ITSELF, Look
from unhang.model.frames import KernelWait, ThreadWait, WaitingTask
from unhang.numeric import np
from unhang.read.files import frame_triples, real, text, texts, whole, wholes
from unhang.read.launchers import RankExit
from unhang.read.rank_folder import RankRecord

_MOST_WAITS = 64
_AT_ONCE_NS = 5_000_000_000


def evidence_of(
    record: RankRecord, summary: RankExit | None = None, logged: Sequence[RaisedError] = (), now_ns: int = 0
) -> RankEvidence:
    """The evidence on one rank.

    Args:
        record: its files.
        summary: how the launcher saw it end.
        logged: exceptions that the output shows under this rank, in the order printed.
        now_ns: the moment of capture, wall clock, where the rank's own files do not tell it.
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
    taken_ns = whole(proc, "taken_ns") or now_ns
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
        in_handler=text(record.waits_fields, "in_handler"),
        phase=page.phase if page else "",
        phase_s=_age_s(taken_ns, page.phase_since_ns) if page and page.phase else None,
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
    number = record.identity.pid if stack.is_main else stack.os_thread_id
    fields = kernel.get(str(number))
    holder = text(fields, "holder") if isinstance(fields, dict) else ""
    pid = int(holder) if holder.isdecimal() else 0
    wait = KernelWait(text(fields, "call"), text(fields, "file"), pid) if isinstance(fields, dict) else None
    ident = stack.ident or (record.main_thread_id if stack.is_main else None)
    work = next((g for g in _objects(record.waits_fields, "given") if whole(g, "thread") == ident), {})
    # A fork's threads have the same numbers.
    is_own = ident is not None and stack.process_id in (None, record.identity.pid)
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


ALIKE = "alike.json"


class Alike(NamedTuple):
    """`read`: the ranks that stand for all of `world`, with those of which nobody told; `unseen`: those that nobody could ask.

    `is_whole`: every kind of rank is among those that were read; else nothing is known of the others. `nodes`: the folders that were read.
    """

    world: int
    read: tuple[int, ...]
    unseen: tuple[int, ...]
    is_whole: bool
    nodes: tuple[str, ...] = ()

    @property
    def expected(self) -> set[int]:
        """Every rank that would be there if all was well."""
        return {*self.read, *self.unseen} if self.is_whole else set(range(self.world))

    @property
    def hidden(self) -> set[int]:
        """Those of them of which nothing can be known."""
        return set(self.unseen) if self.is_whole else self.expected - set(self.read)


def alike_of(fields: Mapping[str, object]) -> Alike | None:
    """What a file says; None where it says nothing."""
    world, read, unseen = whole(fields, "world"), wholes(fields.get("read")), wholes(fields.get("unseen"))
    nodes = texts(fields, "nodes")
    return Alike(world, read, unseen, fields.get("is_whole") is True, nodes) if world and read else None


def smaller(case: Case, alike: Alike) -> Case:
    """The case of the ranks that were read, as a job of its own: their groups have no other members, and nobody is missing."""
    if not alike.is_whole:
        return replace(case, out_of_sight=tuple(sorted(alike.hidden.union(case.out_of_sight))))
    kept = alike.expected
    absent = Unavailable(
        f"{alike.world - len(kept)} of {alike.world} ranks", "not read: each stands as one of those does that were read"
    )
    return replace(
        case,
        job=replace(case.job, world_size=None),
        ranks={rank: evidence for rank, evidence in case.ranks.items() if rank in kept},
        groups=tuple(_group_of(g, kept) for g in case.groups if not g.ranks or kept.intersection(g.ranks)),
        calls=_calls_of(case.calls, kept),
        absent=(absent, *case.absent),
        out_of_sight=tuple(sorted(kept.intersection({*alike.unseen, *case.out_of_sight}))),
        chosen=tuple(sorted(kept)),
        stands_for=alike.world,
    )


def _group_of(group: ProcessGroup, kept: Collection[int]) -> ProcessGroup:
    ranks = tuple(r for r in group.ranks if r in kept)
    return replace(group, ranks=ranks, left_out=group.size - len(ranks))


def _calls_of(table: CollectiveTable, kept: Collection[int]) -> CollectiveTable:
    wanted = np.array(sorted(kept), dtype=np.int32)
    rows, said = np.isin(table["rank"], wanted), np.isin(table.progress["rank"], wanted)
    return replace(
        table,
        columns={name: column[rows] for name, column in table.columns.items()},
        progress={name: column[said] for name, column in table.progress.items()},
        groups=tuple(_group_of(g, kept) for g in table.groups),
        wrapped_ranks=table.wrapped_ranks & frozenset(kept),
        active_ranks=table.active_ranks & frozenset(kept),
    )
