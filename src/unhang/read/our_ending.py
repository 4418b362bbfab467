"""When unhang ended the job itself, what the ranks did while they were being ended is no evidence on the hang."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.read.fields import text, whole
from unhang.read.rank_folder import DUMP_AT_EXIT, RankRecord

_GRACE_NS = 15_000_000_000


def ending_began_ns(job: Mapping[str, object], verdict: Mapping[str, object]) -> int | None:
    """The moment from which we ended the job; None where we did not. A proven hang is ended at once."""
    if job.get("ended_by_us") is not True:
        return None
    if began := whole(job, "aborted_ns"):
        return began
    detected, ended = whole(verdict, "detected_ns") or 0, whole(job, "ended_ns") or 0
    return detected if text(verdict, "kind") == "proven" else max(detected, ended - _GRACE_NS) or None


def forget_since(record: RankRecord, began_ns: int) -> None:
    """Drops errors and ends that began after `began_ns`, and the dump that was written because of them."""
    was_ended = False
    if (whole(record.proc_fields, "died_ns") or 0) > began_ns:
        record.proc_fields = {**record.proc_fields, "died_ns": None, "exit_code": None}
    if record.error is not None and record.error.time_ns > began_ns:
        record.error, was_ended = None, True
    if (whole(record.exit_fields, "time_ns") or 0) > began_ns:
        record.exit_fields, was_ended = {}, True
    record.handled = tuple(e for e in record.handled if e.time_ns <= began_ns)
    if was_ended and len(record.dump_paths) > 1:
        record.dump_paths = [p for p in record.dump_paths if p.name != DUMP_AT_EXIT]
