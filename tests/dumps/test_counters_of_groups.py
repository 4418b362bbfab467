"""Who is named by the counters of each rank and group alone, and who must not be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.dumps.counted_dumps import Counted, named

WORLD = tuple(range(8))
D, D2 = (0, 2, 4, 6), (1, 3, 5, 7)
PAIRS = {f"T{i}": (i, i + 1) for i in range(0, 8, 2)}

# Rank 4 stopped on its host: low in every group, nothing open; rank 5 has run ahead and waits for it.
HOST = Counted(
    {"D": D, "E": D2, **PAIRS},
    {
        **{r: {"D": (41, 40), f"T{r}": (900, 900)} for r in (0, 2, 6)},
        4: {"D": (40, 40), "T4": (900, 900)},
        5: {"E": (40, 40), "T4": (901, 900)},
        **{r: {"E": (41, 40), f"T{r - 1}": (900, 900)} for r in (1, 3, 7)},
    },
)
# All of E are in call 88; rank 3 has not completed what rank 2 has, and neither what rank 1 has in P.
DEVICE = Counted(
    {"E": D2, **PAIRS, "P": (1, 3)},
    {
        0: {"T0": (300, 300)},
        1: {"E": (88, 87), "T0": (300, 300), "P": (54, 54)},
        2: {"T2": (300, 300)},
        3: {"E": (88, 87), "T2": (300, 297), "P": (54, 52)},
        **{r: {"E": (88, 87), f"T{r - 1}": (300, 300)} for r in (5, 7)},
        **{r: {f"T{r}": (300, 300)} for r in (4, 6)},
    },
)
WEDGE = Counted({"W": WORLD}, {r: {"W": (12, 11)} for r in WORLD})


def test_a_host_that_stopped_is_the_root_and_who_ran_ahead_is_not(tmp_path: Path) -> None:
    said = HOST.judged(tmp_path)
    assert named(said) == (4,)
    assert {f.rule for f in said.findings} == {"never-issued"}


def test_a_device_is_the_root_where_its_counters_stand_still_in_several_groups(tmp_path: Path) -> None:
    said = DEVICE.judged(tmp_path)
    assert named(said) == (3,)
    assert "its device, or what watches it, stopped there" in said.findings[0].title


def test_where_all_are_in_and_none_is_out_the_group_is_named_and_nobody_else(tmp_path: Path) -> None:
    (finding,) = WEDGE.judged(tmp_path).findings
    assert finding.culprit_ranks == ()
    assert finding.process_group is not None
    assert finding.process_group["pg_name"] == "W"


def test_the_root_of_a_broadcast_may_be_done_before_the_others_come(tmp_path: Path) -> None:
    ops = {("T0", 5): "broadcast"}
    groups = {"W": WORLD, "T0": (0, 1)}
    all_in = {r: {"W": (9, 8)} for r in WORLD} | {0: {"W": (9, 8), "T0": (5, 5)}, 1: {"W": (9, 8), "T0": (5, 4)}}
    assert named(Counted(groups, all_in, ops=ops).judged(tmp_path / "in")) == ()
    not_in = {**all_in, 0: {"W": (9, 8), "T0": (5, 5)}, 1: {"W": (8, 8), "T0": (4, 4)}}
    assert named(Counted(groups, not_in, ops=ops).judged(tmp_path / "not in")) == (1,)


def test_several_are_not_accused_for_one_that_is_ahead(tmp_path: Path) -> None:
    counters = {r: {"D": (20, 20)} for r in (0, 2, 4)} | {6: {"D": (21, 20)}}
    said = Counted({"D": D}, counters, elements={(6, "D", 21): 1}).judged(tmp_path)
    assert named(said) == ()
    assert "rank 6 alone is in all_reduce" in said.findings[0].title


def test_a_rank_without_a_dump_is_unknown_not_dead(tmp_path: Path) -> None:
    said = Counted({"D": D}, {r: {"D": (70, 69)} for r in D}).judged(tmp_path, leave_out=[6])
    first = said.findings[0]
    assert (first.cause, first.culprit_ranks, first.confidence < 0.5) == ("unknown", (6,), True)


def test_a_rank_without_stacks_is_a_host_root_like_any(tmp_path: Path) -> None:
    assert named(replace(HOST, no_frames=[4]).judged(tmp_path)) == (4,)


def test_a_watchdog_that_stopped_alone_accuses_nobody_but_the_root(tmp_path: Path) -> None:
    """Rank 2's counts are old in both of its groups, and nothing of what its peers completed is open there."""
    old = {2: {"D": (41, 35), "T2": (900, 880)}}
    base = Counted(HOST.groups, {**HOST.counters, **old})

    class _Old(Counted):
        def dump(self, rank: int) -> dict:
            made = super().dump(rank)
            open_here = {"D": 41}
            made["entries"] = [
                e
                for e in made["entries"]
                if rank != 2 or open_here.get(e["process_group"][0]) == e["collective_seq_id"]
            ]
            return made

    assert named(_Old(base.groups, base.counters).judged(tmp_path)) == (4,)


@pytest.mark.parametrize("lost", WORLD)
@pytest.mark.parametrize(("job", "root"), [(HOST, 4), (DEVICE, 3), (WEDGE, None)], ids=["host", "device", "wedge"])
def test_without_any_one_dump_no_innocent_rank_is_named(
    job: Counted, root: int | None, lost: int, tmp_path: Path
) -> None:
    assert set(named(job.judged(tmp_path, leave_out=[lost]))) <= {root}


@pytest.mark.parametrize(("job", "root"), [(HOST, 4), (DEVICE, 3)], ids=["host", "device"])
def test_numbers_as_text_and_other_numbers_of_ranks_name_the_same(job: Counted, root: int, tmp_path: Path) -> None:
    assert named(replace(job, as_json=True).judged(tmp_path / "json")) == (root,)
    turned = replace(job, number={r: (r * 3 + 1) % 8 for r in WORLD})
    assert named(turned.judged(tmp_path / "turned")) == ((root * 3 + 1) % 8,)


@pytest.mark.parametrize("job", [HOST, DEVICE, WEDGE], ids=["host", "device", "wedge"])
def test_a_healthy_group_more_changes_nothing(job: Counted, tmp_path: Path) -> None:
    more = Counted(
        {**job.groups, "H": (1, 6)},
        {r: {**of, **({"H": (7, 7)} if r in (1, 6) else {})} for r, of in job.counters.items()},
        ops=job.ops,
    )
    assert named(more.judged(tmp_path / "more")) == named(job.judged(tmp_path / "job"))


@pytest.mark.parametrize("late", D)
def test_the_root_moves_with_the_fault(late: int, tmp_path: Path) -> None:
    counters = {r: {"D": (41 - (r == late), 40)} for r in D}
    assert named(Counted({"D": D}, counters).judged(tmp_path)) == (late,)
