"""What is cut out of the evidence, how it is made smaller, and what becomes of text that comes from elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

import pytest

from unhang.analyze.situation import Situation
from unhang.model import Case, Finding, WaitEdge, WaitsFor
from unhang.reproduce import describe, write_only
from unhang.reproduce.program import render
from unhang.reproduce.schedule import MOST_RANKS, Schedule, Step, few_ranks, leap, minimize, shrink
from unhang.reproduce.schedule_cut import NotReproducible, cut
from unhang.testing import judge, make_case

STEP = "all_reduce[8]@main:10>step:20"


def schedule_of(calls: dict[int, Sequence[str]], **parts: object) -> Schedule:
    case: Case = make_case({r: list(texts) for r, texts in calls.items()}, world=len(calls), **parts)  # type: ignore[arg-type]
    return cut(Situation(case), judge(case))


@pytest.fixture
def divergence() -> Schedule:
    """Four steps; then rank 0 reduces two elements where the others broadcast."""
    odd, others = "all_reduce[2]@main:11>report:29 !", "broadcast[256]@main:10>step:20 !"
    return schedule_of({r: [*[STEP] * 4, odd if r == 0 else others] for r in range(4)})


def fails_while(*, ranks: int = 1, calls: int = 0, elements: int = 1) -> object:
    """Stands for a run: a schedule fails while it has at least this much of the failure."""

    def fails(s: Schedule) -> bool:
        return (
            s.front(0) is not None
            and len(s.ranks) >= ranks
            and len(s.keys) >= calls
            and max(s.sizes(), default=0) >= elements
        )

    return fails


def test_the_open_calls_and_the_last_two_before_them_are_kept(divergence: Schedule) -> None:
    assert [s.text for s in divergence.steps[0]] == [
        "all_reduce #3 of default_pg",
        "all_reduce #4 of default_pg",
        "all_reduce #5 of default_pg",
    ]
    assert divergence.expected == {
        0: "all_reduce #5 of default_pg",
        **dict.fromkeys((1, 2, 3), "broadcast #5 of default_pg"),
    }
    assert divergence.culprits == (0,)
    assert divergence.steps[0][-1].place == "train.py:29 in report"


def test_it_shrinks_to_what_the_failure_needs(divergence: Schedule) -> None:
    small = shrink(divergence, fails_while(ranks=2))  # type: ignore[arg-type]
    assert small.ranks == (0, 1)
    assert small.keys == ()
    assert small.sizes() == (1, 2)
    assert describe(small) == "group default_pg, call 5: rank 0 makes all_reduce where rank 1 makes broadcast"
    kept = shrink(divergence, fails_while(ranks=3, calls=1, elements=256))  # type: ignore[arg-type]
    assert (kept.ranks, len(kept.keys), max(kept.sizes())) == ((0, 2, 3), 1, 256)


def test_shrinking_never_loses_the_culprit(divergence: Schedule) -> None:
    seen: list[Schedule] = []

    def fails(s: Schedule) -> bool:
        seen.append(s)
        return True

    shrink(divergence, fails)
    assert seen
    assert all(s.culprits == (0,) and s.waiting for s in seen)


def ahead(rank: int, first: str, *later: str) -> tuple[Step, ...]:
    """Asynchronous calls of a rank, none of which completed."""
    return tuple(Step(f"{op} #{n}", op, ("c", "default_pg", n)) for n, op in enumerate((first, *later), 5))


def test_calls_after_the_open_one_go_as_far_as_the_failure_lets_them() -> None:
    steps = {0: ahead(0, "barrier", *["all_reduce"] * 9), 1: ahead(1, "all_reduce", *["all_reduce"] * 9)}
    schedule = Schedule(steps, {}, (0,))
    asked = []

    def fails(s: Schedule) -> bool:
        asked.append(s)
        return len(s.steps.get(1, ())) >= 4

    small = shrink(schedule, fails)
    assert [len(small.steps[r]) for r in (0, 1)] == [1, 4]
    assert len(asked) < 12
    assert schedule.keep_after_front({0: 20, 1: 0}).steps == {0: steps[0], 1: steps[1][:1]}


def test_the_victim_that_is_furthest_behind_is_kept_and_the_culprit_may_be_the_root() -> None:
    """Ranks that need no answer of a broadcast run ahead of those that wait for the culprit."""
    at = {0: 7, 1: 5, 2: 9}
    steps = {r: (Step(f"broadcast #{n}", "broadcast", ("c", "default_pg", n)),) for r, n in at.items()}
    schedule = Schedule({**steps, 3: (Step("is stopped", "stop"),)}, {}, (3,))
    small = shrink(schedule, lambda s: 1 in s.ranks and s.steps[1][0].peer == 3)
    assert small.ranks == (1, 3)
    assert small.expected == {1: "broadcast #5", 3: "is stopped"}


def test_the_smallest_form_is_tried_first(divergence: Schedule) -> None:
    small = leap(divergence, lambda s: True)
    assert small is not None
    assert {r: [(s.text, s.size) for s in steps] for r, steps in small.steps.items()} == {
        0: [("all_reduce #5 of default_pg", 1)],
        1: [("broadcast #5 of default_pg", 2)],
    }
    assert leap(divergence, lambda s: False) is None


def test_the_fix_is_told_in_few_lines() -> None:
    one, other = (
        Step("all_reduce #5", "all_reduce", ("c", "default_pg", 5)),
        Step("barrier #5", "barrier", ("c", "default_pg", 5)),
    )
    assert "\nFIX = {0: SCHEDULE[1]}\n" in render(Schedule({0: (other,), 1: (one,)}, {}, (0,)), "x", with_fix=True)
    two = replace(one, text="all_reduce #6", key=("c", "default_pg", 6))
    text = render(Schedule({0: (other,), 1: (one, two), 2: (two,)}, {}, (0,)), "x", with_fix=True)
    assert "\nFIX = dict.fromkeys([0, 2], SCHEDULE[1])\n" in text
    assert max(map(len, text.splitlines())) < 160


def test_a_rank_in_the_call_of_the_culprit_has_to_wait(divergence: Schedule) -> None:
    assert divergence.core == {0, 1, 2, 3}
    asleep = schedule_of({0: [STEP], 1: [STEP, f"{STEP} !"], 2: [STEP, f"{STEP} !"]})
    assert asleep.steps[0][-1].is_local
    assert asleep.core == {1, 2}


def test_the_fix_is_the_call_that_the_others_make(divergence: Schedule) -> None:
    fix = divergence.only((0, 1))
    assert fix is not None
    steps = fix.fix()
    assert steps is not None
    assert list(steps) == [0]
    assert steps[0][-1].op == "broadcast"
    assert steps[0][-1].size == 256


def test_a_transfer_is_not_torn_apart() -> None:
    case = make_case({r: [STEP, f"recv<{(r - 1) % 3}[8]@main:11>exchange:30 !"] for r in range(3)}, world=3)
    finding = Finding("r", "collective-order-race", "all receive first", 0.9, (0, 1, 2), "for a test")
    ring = cut(Situation(case), replace(judge(case), findings=(finding,)))
    assert ring.only((0, 1)) is None
    fix = ring.fix()
    assert fix is not None
    assert [s.op for s in fix[0]][:2] in (["irecv", "isend"], ["isend", "irecv"])


def test_a_large_job_is_cut_to_a_few_ranks() -> None:
    odd, others = "all_reduce[2]@main:11>report:29 !", "broadcast[256]@main:10>step:20 !"
    few = few_ranks(schedule_of({r: [STEP, odd if r == 40 else others] for r in range(64)}))
    assert few is not None
    assert len(few.ranks) == MOST_RANKS
    assert 40 in few.ranks


def test_calls_that_all_made_alike_are_not_the_ranks_fault() -> None:
    case = make_case({r: [STEP, f"{STEP} !"] for r in range(2)}, world=2)
    for culprits, reason in (((), "no rank is named"), ((7,), "all made the same")):
        finding = Finding("r", "unknown", "all wait", 0.5, culprits, "for a test")
        with pytest.raises(NotReproducible, match=reason):
            cut(Situation(case), replace(judge(case), findings=(finding,)))


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("gpu-hardware", "a device"),
        ("host-oom", "memory"),
        ("network-unstable", "network"),
        ("not-learning", "for ever"),
    ],
)
def test_what_no_order_of_calls_shows_is_said(cause: str, reason: str, divergence: Schedule) -> None:
    case = make_case({0: [f"{STEP} !"], 1: ["barrier@main:3 !"]}, world=2)
    finding = Finding("r", cause, "it broke", 0.9, (0,), "for a test")
    with pytest.raises(NotReproducible, match=reason):
        cut(Situation(case), replace(judge(case), findings=(finding,)))


def test_text_of_a_dump_stays_text() -> None:
    evil = 'x"""\nimport os; os.abort()\n"""\\'
    step = Step(evil, "all_reduce", ("c", evil, 1), evil, place=f"a.py:1\n{evil}")
    schedule = Schedule({0: (step,), 1: (replace(step, op="barrier"),)}, {evil: (0, 1)}, (0,))
    tree = ast.parse(render(schedule, evil, evil, with_fix=True))
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert "abort" not in names


def test_without_a_run_nothing_is_claimed(tmp_path: object) -> None:
    from pathlib import Path

    case = make_case({0: [STEP, f"{STEP} !"], 1: [STEP, "barrier@main:3 !"], 2: [STEP, f"{STEP} !"]}, world=3)
    made = write_only(Situation(case), judge(case), Path(str(tmp_path)) / "repro.py")
    assert not made.was_run
    assert made.notes == ["not run: whether it fails was not tried"]
    ast.parse(made.program)


def test_minimize_finds_the_needed_parts() -> None:
    asked: list[Sequence[int]] = []

    def still_fails(parts: Sequence[int]) -> bool:
        asked.append(tuple(parts))
        return {3, 11} <= set(parts)

    assert list(minimize(range(16), still_fails)) == [3, 11]
    assert len(asked) < 32
    assert list(minimize(range(16), lambda _: True)) == []
    assert list(minimize(range(3), lambda parts: len(parts) == 3)) == [0, 1, 2]


def test_two_groups_in_opposite_order_are_kept_apart() -> None:
    """Both ranks have issued both calls, as a device's queues allow; each is held in the first."""
    calls = {
        0: ["a/all_reduce[8]@main:1 !", "b/all_reduce[8]@main:2 !"],
        1: ["b/all_reduce[8]@main:2 !", "a/all_reduce[8]@main:1 !"],
    }
    case = make_case({r: [STEP, *texts] for r, texts in calls.items()}, world=2, groups={"a": (0, 1), "b": (0, 1)})
    situation, diagnosis = Situation(case), judge(case)
    edges = tuple(WaitEdge(r, (1 - r,), "collective", "", group, 1) for r, group in ((0, "a"), (1, "b")))
    vars(situation)["waits"] = WaitsFor(edges)
    finding = Finding("r", "collective-order-race", "order", 0.9, (1,), "for a test")
    schedule = cut(situation, replace(diagnosis, findings=(finding,)))
    fronts = schedule.fronts_only()
    assert [fronts.steps[r][-1].text for r in (0, 1)] == ["all_reduce #1 of a", "all_reduce #1 of b"]
