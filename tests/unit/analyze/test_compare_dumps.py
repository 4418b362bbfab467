"""Runs that are compared part by part, where their dumps are decoded, give what the comparison of the wholes gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.dumps.small_dumps import SCHEDULED, SmallJob, call, everybody, job
from unhang.analyze.calls import compare as comparing
from unhang.analyze.calls.compare import Comparison, GroupChange, OtherFile, compare, compare_runs
from unhang.analyze.calls.compare_parts import _equal_at
from unhang.analyze.calls.schedule import Ints
from unhang.read import open_paths
from unhang.read.dumps import DumpFile, Shard, engine, reader
from unhang.read.dumps.engine import LocalEngine, Task, plan
from unhang.read.dumps.reader import DumpReader

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import dumpgen
import numpy as np

STEP = [call("all_reduce"), call("all_gather", (4,), group="TP"), call("reduce_scatter", (16,))]
PAIRS = {"TP": (0, 1), "TP ": (2, 3)}


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small jobs are treated as large ones, of which a process takes two ranks of both runs at a time."""
    monkeypatch.setattr(reader, "WHOLE_BYTES", -1)
    monkeypatch.setattr(engine, "FEWEST_FILES", 2)


@pytest.fixture
def by_parts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the comparisons were made by parts."""
    told: list[bool] = []
    real = comparing._compare_parts

    def spy(*runs: object) -> Comparison | None:
        found = real(*runs)  # type: ignore[arg-type]
        told.append(found is not None)
        return found

    monkeypatch.setattr(comparing, "_compare_parts", spy)
    return told


def dumps(files: Sequence[DumpFile]) -> DumpReader:
    return DumpReader(files, use_cache=False)


def both_ways(ours: Path, theirs: Path) -> tuple[Comparison, Comparison]:
    """The comparison, and that of the whole tables."""
    wholes = [open_paths([path], read_dumps=dumps) for path in (ours, theirs)]
    a, b = (run.dumps.seen if run.dumps else None for run in wholes)
    return compare_runs([ours], [theirs], dumps), compare(wholes[0].whole(), wholes[1].whole(), a, b)


def steps(count: int, **more: object) -> SmallJob:
    calls = {
        r: [c if c.group != "TP" else replace(c, group="TP" if r < 2 else "TP ") for c in STEP * count]
        for r in range(4)
    }
    return job(calls, PAIRS, **more)


def changed(base: SmallJob, rank: int, at: int, **fields: object) -> SmallJob:
    calls = {r: list(of_rank) for r, of_rank in base.calls.items()}
    calls[rank][at] = replace(calls[rank][at], **fields)  # type: ignore[arg-type]
    return replace(base, calls=calls)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (steps(12), steps(12)),
        (changed(steps(12), 2, 10, op="broadcast"), steps(12)),
        (changed(steps(12), 3, 9, in_sizes=[(5,)]), steps(9)),
        (steps(12, ring=20), steps(14, ring=25)),
        (everybody(6, STEP[:1] * 9), everybody(4, STEP[:1] * 9)),
        (changed(steps(8), 0, 23, state=SCHEDULED), steps(8)),
    ],
)
def test_parts_tell_what_the_wholes_tell(
    ours: SmallJob, theirs: SmallJob, by_parts: list[bool], tmp_path: Path
) -> None:
    found, whole = both_ways(ours.write(tmp_path / "ours"), theirs.write(tmp_path / "theirs"))
    assert found == whole
    assert found.compared > 20
    assert by_parts == [True]


def test_a_rank_that_parts_is_named(tmp_path: Path, by_parts: list[bool]) -> None:
    found, _ = both_ways(
        changed(steps(12), 2, 9, op="broadcast").write(tmp_path / "ours"), steps(12).write(tmp_path / "theirs")
    )
    (only,) = found.divergences
    assert (only.ranks, only.seq, only.ours, only.theirs) == ((2,), 7, "broadcast(8 Float)", "all_reduce(8 Float)")
    assert by_parts == [True]


@pytest.mark.parametrize("seed", range(10))
def test_random_jobs(seed: int, tmp_path: Path) -> None:
    for name, number in (("ours", seed), ("theirs", seed + seed % 2)):
        dumpgen.random_job(number).write(tmp_path / name)
    found, whole = both_ways(tmp_path / "ours", tmp_path / "theirs")
    assert in_order(found) == in_order(whole)


def in_order(found: Comparison) -> Comparison:
    """With the groups in one order: which of them is met first depends on what is decoded together."""
    changes = [(g.desc, sorted(g.ours, key=repr), sorted(g.theirs, key=repr)) for g in found.groups]
    return replace(found, groups=tuple(GroupChange(d, tuple(a), tuple(b)) for d, a, b in sorted(changes, key=repr)))


def damage(folder: Path) -> None:
    (folder / "nccl_trace_rank_1").write_bytes(b"\x80\x02}q\x00(X")


def lose(folder: Path) -> None:
    (folder / "nccl_trace_rank_2").unlink()


@pytest.mark.parametrize(("harm", "is_by_parts"), [(damage, False), (lose, True)])
def test_what_is_damaged_or_lost(harm: object, is_by_parts: bool, by_parts: list[bool], tmp_path: Path) -> None:
    ours, theirs = (steps(8).write(tmp_path / name) for name in ("ours", "theirs"))
    harm(theirs)  # type: ignore[operator]
    found, whole = both_ways(ours, theirs)
    assert found == whole
    assert len(found.our_ranks_only) == 1
    assert by_parts == [is_by_parts]


class OneByOne(LocalEngine):
    """Decodes each dump in a shard of its own, as after the fall of a process."""

    def run(self, task: Task, files: Sequence[DumpFile], *_: object, **__: object) -> Iterator[Shard]:
        return (task([file]) for file in files)


def test_ranks_that_were_not_seen_together_are_compared_as_wholes(by_parts: list[bool], tmp_path: Path) -> None:
    ours, theirs = changed(steps(8), 2, 9, op="broadcast"), steps(8)
    paths = ours.write(tmp_path / "ours"), theirs.write(tmp_path / "theirs")
    found = compare_runs([paths[0]], [paths[1]], lambda files: DumpReader(files, OneByOne(), use_cache=False))
    assert by_parts == [False]
    assert [d.ranks for d in found.divergences] == [(2,)]
    assert found == both_ways(*paths)[1]


def test_groups_of_one_name_and_other_members_are_compared_as_wholes(by_parts: list[bool], tmp_path: Path) -> None:
    calls = {r: [call("all_reduce", group="TP" if r < 2 else "TP ")] * 6 for r in range(4)}

    def renamed(dump: dict[str, object]) -> dict[str, object]:
        text = repr(dump).replace("'2': {'name': '2'", "'1': {'name': '1'").replace("('2', 'TP ')", "('1', 'TP ')")
        made: dict[str, object] = eval(text, {})
        return made

    alike = job(calls, PAIRS, changes={2: renamed, 3: renamed})
    found, whole = both_ways(alike.write(tmp_path / "ours"), alike.write(tmp_path / "theirs"))
    assert found == whole
    assert by_parts == [False]


def test_dumps_of_one_rank_stay_together() -> None:
    files = [DumpFile(r, f"a{r}", size=9) for r in range(9)]
    others = [OtherFile(r, f"b{r}", size=9) for r in range(2, 9)]
    parts = plan([*files, *others], 2, 3)
    assert [f.rank for part in parts for f in part] == sorted([*range(9), *range(2, 9)])
    assert len(parts) > 3
    assert all(a[-1].rank < b[0].rank for a, b in pairwise(parts))


@pytest.mark.parametrize("kinds", [1, 3, 60, 200])
def test_calls_that_equal_earlier_ones_are_counted(kinds: int) -> None:
    kind: Ints = np.random.default_rng(kinds).integers(0, kinds, 500) * 7
    assert _equal_at(kind, 160).tolist() == [int((kind[p:] == kind[:-p]).sum()) for p in range(1, 161)]
