"""What evidence there is, and which calls are missing and why, in words for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unhang.model import RankEvidence, Unavailable
from unhang.read.rank_folder import RankRecord

NO_DUMP = "no readable flight-recorder dump of it was given"
NO_SIGN = "no process and no file of it was seen"
NO_RECORDER = (
    "the job was started without unhang, and torch had no dump of them to give (of gloo nobody outside can ask for it)"
)
OUT_OF_SIGHT = (
    "not seen from here: it runs on another node, or under another 'unhang run', of which no report was given"
)


@dataclass(frozen=True, slots=True)
class RankCalls:
    """What the dumps of one rank gave."""

    count: int
    has_frames: bool
    backend: str


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def present_evidence(
    calls: Mapping[int, RankCalls], ranks: Mapping[int, RankEvidence], log_lines: int
) -> tuple[str, ...]:
    """Short phrases: "calls of 4 ranks, with call paths"."""
    found = []
    if calls:
        framed, total = sum(c.has_frames for c in calls.values()), sum(c.count for c in calls.values())
        paths = "with call paths" if framed == len(calls) else f"{framed} with call paths"
        found.append(f"{total} calls of {_ranks(len(calls))}, {paths if framed else 'without call paths'}")
    readers = [e.stacks[0].source.reader for e in ranks.values() if e.stacks]
    found += [f"stacks of {_ranks(readers.count(reader))} ({reader})" for reader in sorted(set(readers))]
    for what, count in (
        ("exceptions of", sum(e.error is not None for e in ranks.values())),
        ("handled exceptions of", sum(bool(e.handled) for e in ranks.values())),
        ("ends of", sum(e.exit is not None for e in ranks.values())),
        ("progress of", sum(e.steps is not None for e in ranks.values())),
        ("process states of", sum(e.state is not None for e in ranks.values())),
    ):
        if count:
            found.append(f"{what} {_ranks(count)}")
    if log_lines:
        found.append(f"{log_lines} line{'s' if log_lines > 1 else ''} of output")
    return tuple(found)


def absent_calls(
    calls: Mapping[int, RankCalls], records: Mapping[int, RankRecord], ranks: Mapping[int, RankEvidence]
) -> list[Unavailable]:
    """One entry for each rank without a dump, with the likeliest reason; one for all that were looked at from outside."""
    if records and not calls and all(e.look is not None for e in ranks.values()):
        return [Unavailable("calls of all ranks", NO_RECORDER)]
    return [
        Unavailable(f"calls of rank {rank}", _why_no_dump(record, ranks[rank]))
        for rank, record in records.items()
        if rank not in calls
    ]


def _why_no_dump(record: RankRecord, evidence: RankEvidence) -> str:
    for note in record.absent:
        if "flight" in note.what.lower():
            return note.reason
    if record.at_interrupt:
        return "the signal had ended the process before its calls could be fetched"
    if evidence.initialized is False:
        return "it never left init_process_group, so there are no calls"
    if evidence.exit is not None:
        return f"the process had ended ({evidence.exit.text or evidence.exit.kind}) before its calls could be fetched"
    return NO_DUMP
