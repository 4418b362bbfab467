"""How a process ended, when several witnesses tell parts of it."""

from __future__ import annotations

from unhang.model import ProcessExit
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.read.fields import frame_triples, text, whole
from unhang.read.rank_folder import RankRecord
from unhang.read.torchrun_summary import RankExit


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
        or (_recorded(record, "exit") if own else None)
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
    if code is not None and code < 0:
        return ProcessExit("signal", code, _died_ns(record))
    if code is None and summary is not None and summary.code is not None and summary.code < 0:
        return ProcessExit("signal", summary.code, _died_ns(record) or summary.time_ns, text=SEEN_BY_LAUNCHER)
    return None


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
    return ProcessExit(kind, code, whole(fields, "time_ns") or _died_ns(record), frame_triples(fields, "frames"))


def _without_witness(record: RankRecord) -> ProcessExit | None:
    if record.page is not None and record.page.ended:
        return ProcessExit("exit", None, _died_ns(record))
    if _died_ns(record) or text(record.proc_fields, "state") in ("gone", "Z", "X"):
        return ProcessExit("vanished", None, _died_ns(record))
    return None
