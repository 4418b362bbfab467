"""Which recorded call is which call of the program: by the time in which it was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unhang.errors import UnreadableInput
from unhang.read.dumps.entries import EntryParser, RecordedCall
from unhang.read.rank_folder import name_reductions, read_reductions

MAX = 4


def call(name: str, at: int, group: str = "0") -> RecordedCall:
    entry = {
        "profiling_name": f"gloo:{name}",
        "time_created_ns": at,
        "process_group": [group, ""],
        "state": "scheduled",
    }
    return EntryParser().parse({**entry, "record_id": 0, "collective_seq_id": 1}, 0)


def named(tmp_path: Path, rows: Any, *calls: RecordedCall) -> list[tuple[int, int]]:
    path = tmp_path / "reductions.json"
    path.write_text(json.dumps(rows))
    name_reductions(calls, read_reductions(path))
    return [(c.reduce_op, c.root_in_group) for c in calls]


def test_a_call_has_what_the_program_gave_at_that_time_in_that_group(tmp_path: Path) -> None:
    rows = [[10, 20, "0", MAX, -1], [30, 40, "0", -1, 2], [50, 0, "0", MAX, 1]]
    calls = (
        call("all_reduce", 15),
        call("broadcast", 35),
        call("reduce", 10**18),
        call("all_reduce", 25),
        call("all_reduce", 15, "7"),
    )
    assert named(tmp_path, rows, *calls) == [(MAX, -1), (-1, 2), (MAX, 1), (-1, -1), (-1, -1)]


def test_of_two_threads_that_call_at_once_nothing_is_said(tmp_path: Path) -> None:
    rows = [[10, 20, "0", MAX, -1], [12, 22, "0", 0, -1]]
    assert named(tmp_path, rows, call("all_reduce", 15), call("all_reduce", 11)) == [(-1, -1), (MAX, -1)]


def test_a_call_of_another_kind_takes_nothing(tmp_path: Path) -> None:
    assert named(tmp_path, [[10, 20, "0", MAX, 1]], call("all_gather", 15), call("barrier", 16)) == [(-1, -1)] * 2


@pytest.mark.parametrize(
    "row",
    [[], 3, [1, 2, "0", MAX], [1, 2, 3, 4, 5], [None, 2, "0", MAX, 0], [True, 2, "0", MAX, 0], [1, 99, "0", 10**30, 0]],
)
def test_rows_that_are_none_are_left_out(tmp_path: Path, row: object) -> None:
    assert named(tmp_path, [row, [10, 20, "0", MAX, -1]], call("all_reduce", 15)) == [(MAX, -1)]


def test_an_operation_of_a_later_torch_is_not_known(tmp_path: Path) -> None:
    assert named(tmp_path, [[10, 20, "0", 99, -1]], call("all_reduce", 15)) == [(-1, -1)]


def test_no_list_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput):
        named(tmp_path, {"a": 1})
