"""Dumps of torchcomms: the same fields as torch writes, other meanings.

* `collective_seq_id` counts all calls of the recorder over all communicators, from 0; `p2p_seq_id` is 0, `is_p2p` is false.
* There are no events: a call that is done is `retired`, and stays "scheduled". `profiling_name` begins with "nccl:" on any backend.
* The ranks of a communicator are counted within it, written without brackets. What it says of its progress is empty.

Source: comms/torchcomms/hooks/fr/FlightRecorder.cpp, torchcomms 2026.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unhang.model import CallState, ProcessGroup

if TYPE_CHECKING:
    from unhang.read.dumps.entries import RecordedCall

_TRANSFERS = ("send", "recv")


def is_of_torchcomms(dump: Mapping[Any, Any]) -> bool:
    """Whether torchcomms wrote this dump: members without brackets, and no progress of any group."""
    config = dump.get("pg_config")
    if dump.get("pg_status") or not isinstance(config, dict) or not config:
        return False
    ranks = [group.get("ranks") if isinstance(group, dict) else None for group in config.values()]
    return all(isinstance(text, str) and text.replace(",", "").isdecimal() for text in ranks)


def with_meaning(calls: Sequence[RecordedCall], dump: Mapping[str, Any], rank: int) -> dict[str, ProcessGroup]:
    """Gives the calls, which are in the order of issue, the numbers and states of torch's recorder; returns the groups.

    Calls can be counted for each communicator where none before them is lost, or where there is one communicator. Only of the
    largest one the members are known: all ranks. Calls of others, and calls that cannot be counted, are compared with those of
    no other rank: they only tell that the rank waits.
    """
    sizes = {name: str(group["ranks"]).count(",") + 1 for name, group in dump["pg_config"].items()}
    of_all = [name for name, size in sizes.items() if size == max(sizes.values())]
    is_whole = all(call.record_id == i for i, call in enumerate(calls))
    counts: Counter[tuple[str, bool]] = Counter()
    for call in calls:
        is_comparable = of_all == [call.group] and (is_whole or len(sizes) == 1)
        if call.retired and call.state is not CallState.COMPLETED:
            call.state = CallState.COMPLETED
        call.is_p2p = call.op in _TRANSFERS
        counts[call.group, call.is_p2p] += 1
        if len(sizes) == 1 and not is_whole:
            call.collective_seq += 1
        else:
            call.collective_seq = counts[call.group, False]
        call.p2p_seq = counts[call.group, True]
        if not is_comparable:
            call.group = f"{call.group} of rank {rank}"
    return {
        name: ProcessGroup(name, "", tuple(range(size)), backend=str(dump["pg_config"][name].get("desc", "")))
        for name, size in sizes.items()
        if of_all == [name]
    }
