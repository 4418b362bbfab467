"""The two flight recorders of a torch for CUDA, in one dump."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unhang.inside.recorder import flight
from unhang.inside.recorder.flight import APART, groups_in, merged, statuses
from unhang.read.dumps.objects import load


def call(number: int, name: str, at_ns: int, group: str = "0", seq: int = 1) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": [group, f"desc of {group}"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": name,
        "time_created_ns": at_ns,
        "input_sizes": [[4]],
        "output_sizes": [[4]],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
    }


def dump(*entries: dict[str, Any], enqueued: int | None = None) -> dict[str, Any]:
    status = {} if enqueued is None else {"0": {"last_enqueued_collective": enqueued, "last_completed_collective": 0}}
    return {"version": "2.10", "pg_config": {}, "pg_status": status, "entries": list(entries)}


def groups(backend: str) -> dict[str, dict[str, Any]]:
    return {"0": {"pg_name": "0", "backend": backend, "ranks": [0, 1]}}


def test_calls_stand_in_the_order_in_which_they_were_made() -> None:
    nccl = dump(call(5, "nccl:all_reduce", 10), call(6, "nccl:all_reduce", 30, seq=2), enqueued=2)
    gloo = dump(call(2, "gloo:barrier", 20, group="1"), enqueued=1)
    found = merged(nccl, gloo, {})
    assert [(e["profiling_name"], e["record_id"]) for e in found["entries"]] == [
        ("nccl:all_reduce", 7),  # seven earlier ones are not there any more
        ("gloo:barrier", 8),
        ("nccl:all_reduce", 9),
    ]
    assert [e["pg_id"] for e in found["entries"]] == [0, APART, 0]
    assert sorted(found["pg_status"]) == ["0", str(APART)]
    assert statuses(nccl, gloo).keys() == {0, APART}


def test_a_group_of_two_backends_has_two_sequences() -> None:
    nccl = dump(call(0, "nccl:all_reduce", 10), enqueued=1)
    gloo = dump(call(0, "gloo:all_reduce", 20), enqueued=1)
    found = merged(nccl, gloo, groups("cpu:gloo,cuda:nccl"))
    assert [e["process_group"][0] for e in found["entries"]] == ["0", "0@gloo"]
    assert found["pg_config"]["0@gloo"] == {"ranks": "[0, 1]", "name": "0@gloo"}


def test_a_rank_that_has_not_come_to_nccl_yet_names_it_the_same() -> None:
    gloo = dump(call(0, "gloo:all_reduce", 20), enqueued=1)
    found = merged(dump(), gloo, groups("undefined"))
    assert [e["process_group"][0] for e in found["entries"]] == ["0@gloo"]
    assert found["pg_status"] == gloo["pg_status"]


@pytest.mark.parametrize("backend", ["gloo", "nccl", ""])
def test_a_group_of_one_backend_keeps_its_name(backend: str) -> None:
    gloo = dump(call(0, "gloo:all_reduce", 20), enqueued=1)
    assert merged(dump(), gloo, groups(backend)) == gloo
    assert merged(gloo, dump(), groups(backend))["entries"] == gloo["entries"]


def test_what_is_merged_is_read(tmp_path: Path) -> None:
    nccl = dump(call(0, "nccl:all_reduce", 10), enqueued=1)
    found = merged(nccl, dump(call(0, "gloo:all_reduce", 20), enqueued=1), groups("cpu:gloo,cuda:nccl"))
    path = tmp_path / "flight.json"
    path.write_text(json.dumps(found))
    assert len(load(path, trusted=True)["entries"]) == 2


def test_groups_of_a_broken_file_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    assert groups_in(str(path)) == {}
    path.write_text('{"pg_name": "0", "backend": "nccl"}\n')
    assert groups_in(str(path))["0"]["backend"] == "nccl"
    path.write_text('{"pg_na')
    assert groups_in(str(path)) == {}


def test_both_recorders_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._C._distributed_c10d as c10d

    told = {"_dump_nccl_trace_json": dump(enqueued=7), "_dump_fr_trace_json": dump(enqueued=3)}
    for name, found in told.items():
        monkeypatch.setattr(c10d, name, lambda found=found, **_: json.dumps(found), raising=False)
    assert {n: c["last_enqueued_collective"] for n, c in statuses(*flight.as_json()).items()} == {0: 7, APART: 3}
