"""Several dumps of one rank, taken at different moments, as one; and the call in which a rank failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from unhang.model import CallState, Frame, RaisedError
from unhang.read.flight_entry import RecordedCall
from unhang.read.flight_recorder import RecordedCalls

_COMMUNICATION = re.compile(
    r"connection (closed|reset|refused) by (remote )?peer|broken pipe|timed out waiting|read error|write error"
    r"|application timeout|gloo/|nccl ?error|nccl\w*error|communicator was aborted|watchdog caught collective"
    r"|collective operation timeout|socket ?timeout",
    re.IGNORECASE,
)
_COMMUNICATION_TYPES = ("DistNetworkError", "DistBackendError")
_COLLECTIVES = re.compile(
    r"(all_?reduce|_?all_?gather|_?reduce_scatter|all_?to_?all|broadcast|barrier|monitored_barrier|gather|scatter|reduce)"
    r"(_|$)"
)
_NOT_COLLECTIVES = frozenset(
    ("send", "recv", "isend", "irecv", "batch_isend_irecv", "new_group", "_store_based_barrier")
)


def is_communication_error(error: RaisedError) -> bool:
    """Whether the exception reports a failed or timed-out transfer, not a fault of the program."""
    kind = error.type.rsplit(".", 1)[-1]
    return kind in _COMMUNICATION_TYPES or _COMMUNICATION.search(error.message) is not None


def shows_collective(frames: Iterable[Frame]) -> bool:
    """Whether a stack, innermost first, lies in a collective that the flight recorder records.

    The backward pass counts: DDP and FSDP communicate in it.
    """
    for frame in frames:
        if frame.function == "_engine_run_backward":
            return True
        if "torch/distributed/" in frame.file:
            if frame.function in _NOT_COLLECTIVES:
                return False
            if _COLLECTIVES.match(frame.function):
                return True
    return False


def unite(dumps: Sequence[RecordedCalls], distrust_completion: bool = False) -> tuple[list[RecordedCall], int]:
    """The calls of all dumps by record id, and how many calls contradict another dump (then the first dump wins).

    Args:
        dumps: of one rank, earliest first. Frames are taken from whichever dump has them.
        distrust_completion: the rank failed in its communication, which marks its calls completed (gloo) or frees them
            (nccl): what an earlier dump saw under way stays so, unless the rank issued more calls in that group since.
    """
    if len(dumps) == 1:
        return list(dumps[0].calls), 0
    merged: dict[int, RecordedCall] = {}
    contradictions = 0
    for dump in dumps:
        went_on = {call.group for call in dump.calls if call.record_id not in merged} if merged else set()
        for call in dump.calls:
            known = merged.get(call.record_id)
            if known is None:
                merged[call.record_id] = call
            elif (known.group, known.collective_seq, known.op) != (call.group, call.collective_seq, call.op):
                contradictions += 1
            else:
                pick = min if distrust_completion and call.group not in went_on else max
                call.state = pick(known.state, call.state)
                call.frames = call.frames or known.frames
                merged[call.record_id] = call
    return [merged[number] for number in sorted(merged)], contradictions


def mark_failed(
    calls: Sequence[RecordedCall], error: RaisedError | None, fatal_stacks: Iterable[Sequence[Frame]] = ()
) -> None:
    """Marks the last call FAILED where the rank raised or was aborted in a collective. Calls in the order of issue."""
    raised = (
        error is not None
        and is_communication_error(error)
        and (shows_collective(error.frames) or ("gloo/" in error.message and not _is_elsewhere(error.frames)))
    )
    if calls and (raised or any(map(shows_collective, fatal_stacks))):
        calls[-1].state = CallState.FAILED


def _is_elsewhere(frames: Sequence[Frame]) -> bool:
    """Whether the stack lies in a call that the flight recorder does not record."""
    return any(f.function in _NOT_COLLECTIVES and "torch/distributed/" in f.file for f in frames)
