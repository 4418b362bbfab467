"""Which report folders are nodes of one job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unhang.read.runs import began_ns, jobs_in

Times = tuple[int, int]


def node(folder: Path, ranks: tuple[int, ...], world: int | None = 4, times: Times = (100, 200)) -> None:
    (folder / "bundle" / "ranks").mkdir(parents=True)
    job = {"started_ns": times[0], "ended_ns": times[1] or None}
    (folder / "bundle" / "job.json").write_text(json.dumps(job))
    for rank in ranks:
        (folder / "bundle" / "ranks" / f"r{rank}-{rank + 50}").mkdir()
        identity = folder / "bundle" / "ranks" / f"r{rank}-{rank + 50}" / "identity.json"
        identity.write_text(json.dumps({"rank": rank, "world_size": world}))


def found(folder: Path) -> list[list[str]]:
    return [[str(run.path.relative_to(folder)) for run in job] for job in jobs_in(folder)]


def test_nodes_of_one_job(tmp_path: Path) -> None:
    node(tmp_path / "b", (2, 3), times=(90, 210))
    node(tmp_path / "a", (0, 1))
    assert found(tmp_path) == [["a", "b"]]
    assert began_ns(jobs_in(tmp_path)[0]) == 90


@pytest.mark.parametrize(
    ("ranks", "world", "times"),
    [
        ((1, 2), 4, (100, 200)),
        ((2, 3), 8, (100, 200)),
        ((2, 3), None, (100, 200)),
        ((), 4, (100, 200)),
        ((2, 3), 4, (200, 300)),
        ((2, 3), 4, (150, 0)),
        ((2, 3, 4), 4, (100, 200)),
    ],
    ids=["a rank in both", "another size", "unknown size", "no ranks", "later", "no end", "more ranks than there are"],
)
def test_other_runs(ranks: tuple[int, ...], world: int | None, times: Times, tmp_path: Path) -> None:
    node(tmp_path / "a", (0, 1))
    node(tmp_path / "b", ranks, world, times)
    assert sorted(found(tmp_path)) == [["a"], ["b"]]


def test_what_fits_two_jobs_belongs_to_none(tmp_path: Path) -> None:
    node(tmp_path / "a", (0, 1))
    node(tmp_path / "b", (0, 1))
    node(tmp_path / "c", (2, 3), times=(110, 190))
    assert found(tmp_path) == [["c"], ["a"], ["b"]]


def test_jobs_of_many_days_and_of_stories(tmp_path: Path) -> None:
    node(tmp_path / "day1" / "a", (0, 1))
    node(tmp_path / "day1" / "b", (2, 3))
    node(tmp_path / "day2" / "a", (0, 1), times=(1100, 1200))
    node(tmp_path / "day2" / "a" / "program" / "inner", (0, 1), times=(5000, 6000))
    node(tmp_path / ".hidden", (0, 1), times=(9000, 9100))
    (tmp_path / "running").mkdir()
    assert found(tmp_path) == [["day2/a"], ["day1/a", "day1/b"]]
    assert jobs_in(tmp_path / "day2" / "a") == []
    assert jobs_in(tmp_path / "missing") == []
