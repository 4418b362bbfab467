"""Which ranks a run could see, and several runs of one job read as one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from unhang.model import Case
from unhang.read import read_paths

_S = 1_000_000_000
TORCHRUN = {"local_world_size": 2}
SRUN = {"is_command": True}


def rank(number: int, world: int | None = 4, local: int | None = None, **more: Any) -> dict[str, Any]:
    """identity.json of one rank."""
    return {"rank": number, "world_size": world, "local_rank": local, "pid": 100 + number, **more}


def run(
    folder: Path, ranks: Sequence[Mapping[str, Any]], environment: Mapping[str, str] | None = None, **job: Any
) -> Path:
    """A report folder."""
    for identity in ranks:
        own = folder / "bundle" / "ranks" / f"r{identity['rank']}-{identity['pid']}"
        own.mkdir(parents=True)
        (own / "identity.json").write_text(json.dumps(identity))
        group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(identity["world_size"] or 4))}
        (own / "groups.jsonl").write_text(json.dumps(group))
    (folder / "bundle").mkdir(parents=True, exist_ok=True)
    times = {"started_ns": 100 * _S, "ended_ns": 200 * _S, "exit_code": 0}
    facts = {"environment": dict(environment or {}), "report_dir": str(folder), **times, **job}
    (folder / "bundle" / "job.json").write_text(json.dumps(facts))
    return folder


def task(number: int, size: int = 4) -> dict[str, str]:
    """What srun gives to each task, in the names that a wrapper exports."""
    return {"RANK": str(number), "WORLD_SIZE": str(size)}


def unseen(*folders: Path) -> tuple[int, ...]:
    """The ranks out of sight."""
    return read_paths(folders).out_of_sight


TORCHRUN_RANKS = [rank(2, local=0, **TORCHRUN), rank(3, local=1, **TORCHRUN)]
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("ranks", "environment", "expected"),
    [
        pytest.param(TORCHRUN_RANKS, {}, (0, 1), id="torchrun on one of two nodes"),
        pytest.param(TORCHRUN_RANKS[1:], {}, (0, 1), id="a rank of its own never came"),
        pytest.param([rank(r, local=r, local_world_size=4) for r in (0, 1, 3)], {}, (), id="torchrun on one node"),
        pytest.param([rank(0), rank(1), rank(2)], {}, (), id="nothing tells of another node"),
        pytest.param([rank(1)], task(1), (0, 2, 3), id="a task of srun behind a script"),
        pytest.param([rank(1, **SRUN)], {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, (0, 2, 3), id="srun, old"),
        pytest.param([rank(1, None, **SRUN)], {}, (0, 2, 3), id="started by hand with --rank 1"),
        pytest.param([rank(0, local=0, **SRUN)], {}, (), id="the main process starts the others, as Lightning does"),
        pytest.param([rank(0), rank(1)], task(0), (2, 3), id="the number of the node in RANK"),
        pytest.param(
            [rank(2)], {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 1), id="spawn per node"
        ),
        pytest.param([rank(r, 8) for r in (4, 5, 6)], STEP, (0, 1, 2, 3), id="a spawned rank of four never came"),
        pytest.param(
            [rank(0), rank(1)], {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (), id="a batch script is no task"
        ),
        pytest.param([rank(0), rank(1)], {"SLURM_NNODES": "2"}, (2, 3), id="srun below, on two nodes"),
        pytest.param([rank(0, local=0, **TORCHRUN), rank(2, local=1, **TORCHRUN)], {}, (1, 3), id="dealt out by turns"),
    ],
)
def test_only_what_a_run_starts_itself_is_in_sight(
    ranks: list[dict[str, Any]], environment: dict[str, str], expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert unseen(run(tmp_path / "a", ranks, environment)) == expected


def test_with_the_reports_of_all_nodes_nothing_is_out_of_sight(tmp_path: Path) -> None:
    folders = [run(tmp_path / str(r), [rank(r)], task(r)) for r in range(4)]
    assert unseen(*folders) == ()
    assert unseen(*folders[:2]) == (2, 3)
    assert read_paths(folders).job.report_dirs == tuple(map(str, folders))


def test_a_folder_holds_the_runs_that_ran_together(tmp_path: Path) -> None:
    run(tmp_path, [rank(0, 2)], task(0, 2))
    run(tmp_path / "b", [rank(1, 2)], task(1, 2), started_ns=150 * _S)
    run(tmp_path / "b-2", [rank(1, 2, started_ns=400 * _S)], task(1, 2), started_ns=300 * _S, ended_ns=500 * _S)
    case = read_paths([tmp_path])
    assert (case.out_of_sight, sorted(case.ranks)) == ((), [0, 1])
    assert case.ranks[1].identity.started_ns == 0
    assert [a.reason for a in case.absent if a.what.startswith("folder")] == ["it holds a run of another time"]


def joined(tmp_path: Path, one: Mapping[str, Any], other: Mapping[str, Any]) -> Case:
    """Two runs with these fields of job.json."""
    return read_paths(
        [run(tmp_path / "a", [rank(0, 2)], task(0, 2), **one), run(tmp_path / "b", [rank(1, 2)], task(1, 2), **other)]
    )


def test_the_end_of_the_job_is_the_worst_end_of_its_runs(tmp_path: Path) -> None:
    hung = {"exit_code": 124, "ended_by_us": True, "aborted_ns": 190 * _S}
    assert joined(tmp_path / "1", {}, {"exit_code": 3}).job.exit_code == 3
    assert joined(tmp_path / "2", {"exit_code": 3}, hung).job.ended_by_us
    assert joined(tmp_path / "3", {}, {}).job.exit_code == 0
    assert joined(tmp_path / "4", {}, {"exit_code": None, "ended_ns": None}).job.exit_code is None
    later = {"exit_code": 3, "started_ns": 300 * _S, "ended_ns": 400 * _S}
    assert joined(tmp_path / "5", {}, later).job.exit_code == 0  # another job: the first is judged


def test_the_surest_watcher_speaks_for_all(tmp_path: Path) -> None:
    folders = [run(tmp_path / str(r), [rank(r, 3)], task(r, 3)) for r in range(3)]
    for folder, kind, withdrawn in zip(
        folders, ("suspected", "proven", "suspected"), (False, False, True), strict=True
    ):
        verdict = {"kind": kind, "onset_ns": 150 * _S, "detected_ns": 160 * _S, "withdrawn": withdrawn}
        ranks = [int(folder.name)]
        (folder / "bundle" / "verdict.json").write_text(json.dumps({**verdict, "waiting_ranks": ranks}))
    hang = read_paths(folders).hang
    assert hang is not None
    assert (hang.kind, hang.waiting_ranks, hang.withdrawn) == ("proven", (0, 1), False)


def test_what_died_after_we_ended_the_job_elsewhere_did_not_die_by_itself(tmp_path: Path) -> None:
    hung = run(tmp_path / "a", [rank(0, 2)], task(0, 2), exit_code=124, ended_by_us=True, aborted_ns=180 * _S)
    other = run(tmp_path / "b", [rank(1, 2)], task(1, 2), exit_code=143)
    (proc,) = other.glob("bundle/ranks/*")
    (proc / "proc.json").write_text(json.dumps({"state": "gone", "died_ns": 190 * _S, "exit_code": -15}))
    assert read_paths([hung, other]).ranks[1].exit is None
    assert read_paths([other]).ranks[1].exit is not None
