"""Dumps of other recorders than torch's own for NCCL, as their documentation and sources write them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from unhang.diagnosis import judge_paths
from unhang.model import CallState, Diagnosis
from unhang.read.dumps import DumpFile
from unhang.read.dumps.objects import decode_objects
from unhang.read.dumps.reader import DumpReader

OPEN, DONE = False, True


def comms_entry(number: int, op: str, comm: str, retired: bool, numel: int = 8) -> dict[str, Any]:
    """An entry as torchcomms writes it: no events, one count over all communicators, from 0."""
    return {
        "record_id": number, "pg_id": 0, "process_group": [comm, "ncclx"], "thread_name": "python3", "thread_id": "1",
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_795_000_000_000_000_000 + number, "input_sizes": [[numel]], "input_dtypes": ["Float"],
        "output_sizes": [[numel]], "output_dtypes": ["Float"], "state": "scheduled", "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0, "retired": retired, "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip


def comms_dump(entries: list[dict[str, Any]], **comms: str) -> dict[str, Any]:
    config = {name: {"name": name, "desc": "ncclx", "ranks": ranks} for name, ranks in comms.items()}
    shown = {"entries": entries} if entries else {}
    return {"version": "2.10", "comm_lib_version": "2.28", "pg_config": config, "pg_status": {}, **shown}


def said(dumps: dict[int, dict[str, Any]], folder: Path, as_json: bool = True) -> Diagnosis:
    for rank, dump in dumps.items():
        data = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
        (folder / f"torchcomm_fr_trace_{rank}").write_bytes(data)
    return judge_paths([folder], lambda paths, *more: DumpReader(paths, *more, use_cache=False)).diagnosis


def world_calls(*retired: bool) -> list[dict[str, Any]]:
    return [comms_entry(i, "all_reduce", "world", done) for i, done in enumerate(retired)]


@pytest.mark.parametrize("as_json", [True, False])
def test_torchcomms_a_retired_call_is_done_and_the_rank_that_did_not_come_is_named(
    as_json: bool, tmp_path: Path
) -> None:
    waits = comms_dump(world_calls(DONE, DONE, OPEN), world="0,1,2")
    late = comms_dump(world_calls(DONE, DONE), world="0,1,2")
    (finding,) = said({0: waits, 1: late, 2: waits}, tmp_path, as_json).findings
    assert (finding.rule, finding.culprit_ranks) == ("never-issued", (1,))


def test_torchcomms_calls_of_several_communicators_are_counted_for_each(tmp_path: Path) -> None:
    """Rank 1 made two more calls in a communicator of its own: its third call of all is the first of the world."""
    one = [comms_entry(0, "all_reduce", "world", DONE), comms_entry(1, "all_reduce", "world", OPEN)]
    two = [
        comms_entry(0, "broadcast", "tp", DONE),
        comms_entry(1, "broadcast", "tp", DONE),
        comms_entry(2, "all_reduce", "world", DONE),
        comms_entry(3, "all_reduce", "world", OPEN),
    ]
    dumps = {
        0: comms_dump(one, world="0,1,2"),
        1: comms_dump(two, world="0,1,2", tp="0,1"),
        2: comms_dump(one, world="0,1,2"),
    }
    assert all(f.culprit_ranks == () for f in said(dumps, tmp_path).findings)


def test_torchcomms_transfers_are_known_by_their_names() -> None:
    data = json.dumps(comms_dump([comms_entry(0, "send", "world", DONE)], world="0,1")).encode()
    table = decode_objects(DumpFile(0, "x"), data, None, False).table
    assert table["is_p2p"].tolist() == [True]
    assert table["state"].tolist() == [CallState.COMPLETED]


def test_torchcomms_who_waits_in_a_smaller_communicator_is_not_idle(tmp_path: Path) -> None:
    """Members of a smaller one are counted within it, so nobody can be named for it, nor the rank that waits there."""
    waits = comms_dump([comms_entry(0, "all_reduce", "world", OPEN)], world="0,1,2")
    elsewhere = comms_dump([comms_entry(0, "all_reduce", "tp", OPEN)], world="0,1,2", tp="0,1")
    found = said({0: waits, 1: elsewhere, 2: waits}, tmp_path).findings
    assert all(f.confidence < 0.5 or f.culprit_ranks == () for f in found)


def test_a_hook_on_another_backend_says_completed_without_events(tmp_path: Path) -> None:
    """torch's FlightRecorderHook: names `nccl2:`, no times, done by its completion hook."""

    def entry(number: int, done: bool) -> dict[str, Any]:
        return {
            **comms_entry(number, "all_reduce", "0", done), "process_group": ("0", "default_pg"), "profiling_name": "nccl2:all_reduce",
            "collective_seq_id": number + 1, "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        }  # fmt: skip

    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}

    def dump(*done: bool) -> dict[str, Any]:
        return {
            "version": "2.10",
            "pg_config": config,
            "pg_status": {},
            "entries": [entry(i, d) for i, d in enumerate(done)],
        }

    waits = dump(DONE, DONE, OPEN)
    (finding,) = said({0: waits, 1: waits, 2: dump(DONE, DONE)}, tmp_path, as_json=False).findings
    assert (finding.rule, finding.culprit_ranks) == ("never-issued", (2,))


def test_a_receive_from_any_source_is_a_transfer_without_a_peer() -> None:
    made = comms_entry(0, "recv 0<-?", "0", OPEN) | {"is_p2p": True}
    dump = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}},
        "pg_status": {},
        "entries": [made],
    }
    table = decode_objects(DumpFile(0, "x"), json.dumps(dump).encode(), None, False).table
    assert ([table.ops[i] for i in table["op"]], table["peer"].tolist()) == (["recv"], [-1])
