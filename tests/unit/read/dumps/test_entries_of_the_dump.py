"""What a dump finds done that the watchdog had not noted, and transfers that end in any order."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from tests.unit.read.made_dumps import dump, entry

from unhang.model import CallState, ProcessGroup
from unhang.read.dumps import DumpFile, complete_batches
from unhang.read.dumps.decode import decode_shard
from unhang.read.dumps.head import match_status
from unhang.read.dumps.objects import decode_objects

FILE = DumpFile(0, "x")


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_completion_that_the_dump_found_has_no_time(is_fast: bool) -> None:
    noted, found = entry(0), entry(1, retired=False)
    data = pickle.dumps(dump([noted, found]), 2)
    table = (
        decode_shard([FILE], read=lambda _: data).table if is_fast else decode_objects(FILE, data, None, False).table
    )
    assert table["state"].tolist() == [CallState.COMPLETED] * 2
    assert [ns > 0 for ns in table["completed_ns"].tolist()] == [True, False]


def transfers(*numbers: int, completed: int) -> list[CallState]:
    """The states of sends of these numbers in a dump of open calls whose rank says which one completed last."""
    waiting: dict[str, Any] = {
        "state": "scheduled",
        "retired": False,
        "time_discovered_completed_ns": None,
        "is_p2p": True,
    }
    made = [entry(9 + n, "nccl:send 0->1", p2p_seq_id=n, collective_seq_id=0, **waiting) for n in numbers]
    status = {
        "0": {
            "last_enqueued_collective": max(numbers),
            "last_started_collective": -1,
            "last_completed_collective": completed,
        }
    }
    table = decode_objects(FILE, pickle.dumps(dump(made, pg_status=status), 2), None, False).table
    return [CallState(s) for s in complete_batches(table)["state"].tolist()]


def test_a_transfer_is_open_though_a_later_one_with_another_peer_is_done() -> None:
    assert transfers(5, completed=6) == [CallState.SCHEDULED]


def test_members_of_batches_are_done_where_the_last_completed_one_is_still_shown() -> None:
    assert transfers(5, 6, completed=6) == [CallState.COMPLETED] * 2


def test_ids_count_all_groups_in_the_order_of_creation_also_those_without_a_call() -> None:
    configured = {name: ProcessGroup(name, "", ()) for name in ("0", "7", "27", "3")}
    found = match_status({"1": (4, -1, 4), "3": (9, -1, 9)}, {}, configured, configured.__getitem__)
    assert {number: group.name for number, group in found.items()} == {"1": "3", "3": "27"}
    contradicted = match_status({"1": (4, -1, 4), "2": (9, -1, 9)}, {"2": "27"}, configured, configured.__getitem__)
    assert {number: group.name for number, group in contradicted.items()} == {"2": "27"}
