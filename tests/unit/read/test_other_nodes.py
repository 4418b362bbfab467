"""What the hub of several nodes keeps of the others: their ranks are ranks like its own, by its own clock, as long as they are heard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unhang.diagnosis import diagnose
from unhang.model import Case
from unhang.read import read_bundle

SECOND = 1_000_000_000
ERROR = {
    "type": "ValueError",
    "message": "a broken sample",
    "frames": [["train.py", 7, "load"]],
    "thread": "MainThread",
}


def _write(path: Path, fields: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields))


def _rank(folder: Path, rank: int, **files: Any) -> None:
    identity = {"rank": rank, "world_size": 4, "local_rank": rank % 2, "local_world_size": 2, "pid": 10 + rank}
    identity |= {"host": f"node{rank // 2}", "started_ns": 100 * SECOND}
    for name, fields in {"identity": identity, **files}.items():
        _write(folder / "ranks" / f"r{rank}-{10 + rank}" / f"{name}.json", fields)


def _bundle(folder: Path, unheard: str = "", offset_ns: int = 0, **of_rank_2: Any) -> Path:
    _write(folder / "job.json", {"started_ns": 90 * SECOND, "exit_code": 1, "environment": {}})
    for rank in (0, 1):
        _rank(folder, rank, proc={"state": "S", "taken_ns": 120 * SECOND})
    other = folder / "nodes" / "abc"
    _write(other / "job.json", {"started_ns": 91 * SECOND, "environment": {}})
    _write(other / "node.json", {"host": "node1", "unheard": unheard, "clock_offset_ns": offset_ns})
    _rank(other, 2, **of_rank_2)
    _rank(other, 3, proc={"state": "S", "taken_ns": 120 * SECOND})
    return folder


def _absent(case: Case) -> dict[str, str]:
    return {a.what: a.reason for a in case.absent}


def test_ranks_of_all_nodes_are_one_job(tmp_path: Path) -> None:
    case = read_bundle(_bundle(tmp_path, proc={"state": "R"}))
    assert (sorted(case.ranks), case.out_of_sight, case.job.nodes) == ([0, 1, 2, 3], (), 2)


def test_the_clock_of_another_node_is_set_right(tmp_path: Path) -> None:
    error = {**ERROR, "time_ns": 200 * SECOND}
    end = {"kind": "exit", "code": 1, "time_ns": 201 * SECOND}
    folder = _bundle(tmp_path, offset_ns=-50 * SECOND, error=error, exit=end)
    evidence = read_bundle(folder).ranks[2]
    assert evidence.error is not None
    assert evidence.exit is not None
    assert (evidence.error.time_ns, evidence.exit.time_ns) == (150 * SECOND, 151 * SECOND)
    assert evidence.identity.started_ns == 50 * SECOND


def test_a_node_that_is_not_heard_is_unknown_and_not_dead(tmp_path: Path) -> None:
    folder = _bundle(tmp_path, unheard="its machine is down, or the network to it (timed out)", proc={"state": "R"})
    case = read_bundle(folder)
    assert (sorted(case.ranks), case.out_of_sight) == ([0, 1], (2, 3))
    expected = "its node node1 was no longer heard: its machine is down, or the network to it (timed out)"
    assert [_absent(case)[f"rank {rank}"] for rank in (2, 3)] == [expected, expected]
    assert not [f for f in diagnose(folder).findings if f.culprit_ranks]


def test_an_end_that_was_heard_before_the_silence_stays_known(tmp_path: Path) -> None:
    died = {"state": "gone", "died_ns": 119 * SECOND, "exit_code": -9}
    case = read_bundle(_bundle(tmp_path, unheard="its watcher is gone", proc=died))
    assert (sorted(case.ranks), case.out_of_sight) == ([0, 1, 2], (3,))


def test_damaged_notes_on_a_node_cost_only_themselves(tmp_path: Path) -> None:
    folder = _bundle(tmp_path, proc={"state": "R"})
    (folder / "nodes" / "abc" / "node.json").write_bytes(b"\xff\x00")
    (folder / "nodes" / "abc" / "job.json").unlink()
    (folder / "nodes" / "file").write_text("x")
    assert sorted(read_bundle(folder).ranks) == [0, 1, 2, 3]
