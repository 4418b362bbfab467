"""Weighs what the files of one process say: one RankEvidence per rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unhang.model import ProcessState, RaisedError, RankEvidence, ThreadStack
from unhang.read.fields import real, text, whole
from unhang.read.process_exit import exit_of
from unhang.read.rank_folder import RankRecord
from unhang.read.torchrun_summary import RankExit


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
    taken_ns = whole(proc, "taken_ns") or now_ns
    monotonic_ns = whole(proc, "taken_monotonic_ns")
    return RankEvidence(
        identity=record.identity,
        stacks=stacks_of(record),
        state=_state(proc),
        error=error,
        handled=handled,
        exit=exit_of(record, summary),
        pending=page.pending if page else (),
        steps=page.steps if page else None,
        phase=page.phase if page else "",
        phase_s=_age_s(taken_ns, page.phase_since_ns) if page and page.phase else None,
        initialized=page.initialized if page else None,
        heartbeat_age_s=_age_s(monotonic_ns, page.heartbeat_ns) if page else None,
        unavailable=tuple(record.absent),
    )


def stacks_of(record: RankRecord) -> tuple[ThreadStack, ...]:
    """The stacks at the fatal signal, else py-spy's, else the last that faulthandler was asked for."""
    at_signal = record.fatal.threads if record.fatal is not None else ()
    found = at_signal or record.stacks or (record.fault_dumps[-1].threads if record.fault_dumps else ())
    return tuple(replace(s, variables=record.variables) if s.is_main else s for s in found)


def _age_s(now_ns: int | None, then_ns: int) -> float | None:
    return max(0.0, (now_ns - then_ns) / 1e9) if now_ns and then_ns else None


def _state(proc: dict[str, object]) -> ProcessState | None:
    if not proc:
        return None
    died = whole(proc, "died_ns") is not None
    return ProcessState(
        state="gone" if died else text(proc, "state"),
        cpu_share=real(proc, "cpu_share"),
        wchan=text(proc, "wchan"),
        open_fds=whole(proc, "open_fds"),
        fd_limit=whole(proc, "fd_limit"),
        rss_bytes=whole(proc, "rss_bytes"),
        oom_kills=whole(proc, "oom_kills"),
    )
