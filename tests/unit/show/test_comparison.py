from __future__ import annotations

import json

import pytest

from unhang.analyze.calls.compare import Comparison, GroupChange, OpUse, Pair, SizeChange, StepTime
from unhang.analyze.calls.schedule import Divergence
from unhang.model import ProcessGroup
from unhang.show.runs import comparison_json, render_comparison

ALIKE = Comparison(world=(8, 8), calls=(80, 80), wrapped=(0, 0), compared=80)
PARTED = Divergence(tuple(range(8)), "TP", 312, "all_reduce(4x2048 Float)", "all_gather(2x2048 Float)")


def first_line(found: Comparison) -> str:
    return render_comparison(found).split("\n")[0]


def more(**fields: object) -> Comparison:
    return Comparison(**{"world": (8, 8), "calls": (80, 80), "wrapped": (0, 0), "compared": 80, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (ALIKE, "SAME  no difference in what the ranks call"),
        (
            more(steps=(StepTime(0.3, 4, 8), StepTime(0.1, 4, 8))),
            "SAME  no difference in what the ranks call, but this run is 3.00 times slower",
        ),
        (more(steps=(StepTime(0.101, 4, 8), StepTime(0.1, 4, 8))), "SAME  no difference in what the ranks call"),
        (
            more(divergences=(PARTED,)),
            "DIFFERENT  ranks 0-7: at #312 of TP all_reduce(4x2048 Float) against all_gather(2x2048 Float)",
        ),
        (
            more(divergences=(Divergence((3,), "TP", 9, "barrier(1)", "barrier(1)", "a.py:3 in f", "a.py:4 in f", True),)),
            "DIFFERENT  rank 3: at #9 of TP barrier(1) at a.py:3 in f against barrier(1) at a.py:4 in f",
        ),
        (
            more(divergences=(Divergence((3,), "TP", 9, "", "barrier(1)", "", "a.py:4 in f"),)),
            "DIFFERENT  rank 3: at #9 of TP no call against barrier(1)",
        ),
        (
            more(groups=(GroupChange("TP", tuple(ProcessGroup(str(i), "TP", (i, i + 1)) for i in (0, 2)),
                                     (ProcessGroup("1", "TP", (0, 1, 2, 3)),)),)),
            "DIFFERENT  the process groups differ: TP: 2 groups of 2 ranks (group 0: 0, 1) against group 1 of ranks 0-3",
        ),
        (
            more(sizes=(SizeChange("DP", "all_gather", ("4 Float",), ("8 Float",)),)),
            "DIFFERENT  all_gather of DP differs in size: 4 Float against 8 Float",
        ),
        (more(world=(8, 16)), "DIFFERENT  8 ranks against 16"),
        (more(their_ranks_only=(5,)), "DIFFERENT  rank 5 only in the other run"),
        (more(software=(Pair("torch", "2.12", "2.13"),)), "DIFFERENT  torch: 2.12 against 2.13"),
        (more(compared=0), "UNKNOWN  the runs recorded no stretch in common"),
        (more(calls=(0, 80), compared=0), "UNKNOWN  this run has no recorded calls"),
        (more(calls=(0, 0), compared=0), "UNKNOWN  both runs have no recorded calls"),
    ],
)  # fmt: skip
def test_the_first_line_is_the_answer(found: Comparison, answer: str) -> None:
    assert first_line(found) == answer


def test_the_text_shows_both_runs() -> None:
    text = render_comparison(more(uses=(OpUse("TP", "all_reduce", 40, 60, 8.25, 12.0),),
                                  steps=(StepTime(0.3, 1, 8), None), our_ranks_only=(7,)))  # fmt: skip
    assert "all_reduce of TP  40 against 60 calls per rank  8.25 against 12 per second" in text
    assert "300 ms (each call alike)  no repeating pattern" in text
    assert "Only in this run: rank 7." in text
    assert not text.endswith("\n")


def test_long_lists_are_cut() -> None:
    parted = tuple(Divergence((r,), "TP", r, "a", "b") for r in range(64))
    text = render_comparison(more(divergences=parted))
    assert "... and 52 more" in text
    assert len(text.split("\n")) < 40


def test_hostile_text_is_harmless() -> None:
    text = render_comparison(more(divergences=(Divergence((0,), "\x1b[31m", 1, "\u202e", "\ud800"),)))
    assert "\x1b" not in text
    text.encode()


def test_json() -> None:
    report = json.loads(comparison_json(more(divergences=(PARTED,), steps=(StepTime(0.2, 4, 8), StepTime(0.1, 4, 8)))))
    assert report["schema"] == "unhang.comparison/1"
    assert report["is_same_program"] is False
    assert report["slowdown"] == 2.0
    assert report["divergences"][0]["ranks"] == list(range(8))
    assert report["divergences"][0]["seq"] == 312
    comparison_json(more(divergences=(Divergence((0,), "\ud800", 1, "", ""),))).decode()
