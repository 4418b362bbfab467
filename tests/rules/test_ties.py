"""Two sides that differ, and nobody in the majority: a condition on the rank tells who is odd; without one, nobody is accused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rules.cases import load_examples
from unhang.model import Case, Finding
from unhang.rules.registry import all_rules, judge
from unhang.testing import Fires, ended, make_case

DIVERGED, ENDED_EARLY = "rank-dependent-collective", "rank-exited-early"
MEET = "all_reduce[8]@main:3"


def only(case: Case) -> Finding:
    """The one finding on a case."""
    (finding,) = judge(case).findings
    return finding


def tie(source: str, *lines: int, ops: tuple[str, str] = ("barrier", "all_reduce[8]"), **more: Any) -> Case:
    """Two ranks that met at line 3 of `main`; rank 0 is in the first op at the first line, rank 1 in the second at the second."""
    calls = {r: [MEET, f"{op}@main:{line} !"] for r, (op, line) in enumerate(zip(ops, lines, strict=True))}
    return make_case(calls, world=2, source=source, **more)


def program(*body: str, before: str = "x = 1") -> str:
    """A program whose `main` begins at line 2."""
    return f"{before}\ndef main():\n    dist.all_reduce(x)\n" + "\n".join(f"    {line}" for line in body) + "\n"


TOLD = {
    "a condition": (program("if rank == 0:", "    dist.barrier()", "dist.all_reduce(x)"), (5, 6), (0,), 5),
    "a variable": (
        program("if chosen:", "    dist.barrier()", "dist.all_reduce(x)", before="chosen = dist.get_rank() == 0"),
        (5, 6), (0,), 5),
    "an early return": (
        program("if rank != 0:", "    return dist.all_reduce(x)", "dist.barrier()"), (6, 5), None, None),
    "an early continue": (
        program("for step in steps:", "    if not is_main_process():", "        continue", "    dist.barrier()",
                "dist.all_reduce(x)"), (7, 8), (0,), 7),
    "the other ranks' condition": (
        program("if rank > 0:", "    dist.all_reduce(x)", "dist.barrier()"), (6, 5), (1,), 5),
    "all pass it": (program("if rank >= 0:", "    dist.barrier()", "dist.all_reduce(x)"), (5, 6), None, None),
    "both stand under it": (
        program("if trainer.is_global_zero or rank == 1:", "    if step:", "        dist.barrier()",
                "    dist.all_reduce(x)"), (6, 7), None, None),
    "two branches": (
        program("if rank == 0:", "    dist.barrier()", "else:", "    dist.all_reduce(x)"), (5, 7), None, None),
    "one after the other": (
        program("if rank != 0:", "    dist.barrier()", "dist.all_reduce(x)", "if rank == 0:", "    dist.barrier()"),
        (6, 5), None, None),
    "a condition on data": (program("if loss > 3:", "    dist.barrier()", "dist.all_reduce(x)"), (5, 6), None, 5),
    "no condition": (program("dist.barrier()", "dist.all_reduce(x)"), (4, 5), None, None),
    "one that this rank would not pass": (
        program("if rank == 1:", "    dist.barrier()", "dist.all_reduce(x)"), (5, 6), None, None),
    "the rank of a matrix": (
        program("if lora.rank == 0:", "    dist.barrier()", "dist.all_reduce(x)"), (5, 6), None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_the_side_under_a_rank_condition_is_named_and_else_nobody(name: str) -> None:
    source, lines, culprits, line = TOLD[name]
    ops = ("barrier", "all_reduce[8]")
    found = only(tie(source, *lines, ops=ops))
    assert (found.rule, found.cause) == (DIVERGED, "code-divergence")
    if culprits is None:
        assert (found.culprit_ranks, found.victim_ranks) == ((0, 1), ())
        assert (found.location and found.location.line) == line
        assert [fix.does for fix in found.fixes] == ([] if line is None else ["decide together"])
        assert ("Only one of them is conditional" in found.because) == (line is not None)
        assert found.confidence < 0.5
        assert found.title == (
            f"rank 0 was in barrier() from main (train.py:{lines[0]}) and rank 1 was in all_reduce(8) from main (train.py:{lines[1]})"
        )
    else:
        assert (found.culprit_ranks, found.location and found.location.line) == (culprits, line)
        assert found.confidence > 0.8
        assert f"the condition on line {line}" not in found.because
        assert "depends on the rank" in found.because


def test_the_condition_may_lie_in_a_function_below() -> None:
    source = (
        "def save():\n    if rank != 0:\n        return\n    dist.barrier()\n\ndef main():\n    save()\n    reduce()\n"
    )
    calls = {
        0: ["all_reduce[8]@main:6", "barrier@main:7>save:4 !"],
        1: ["all_reduce[8]@main:6", "all_reduce[8]@main:8 !"],
    }
    found = only(make_case(calls, world=2, source=source))
    assert (found.culprit_ranks, found.location and found.location.line) == ((0,), 4)
    assert "take the call out of `rank == 0` (line 2)" in found.fixes[0].advice


def test_equal_calls_from_two_lines_are_passed_over_for_those_that_differ() -> None:
    source = program("if rank == 0:", "    dist.broadcast(x, 0)", "else:", "    dist.broadcast(x, 0)",
                     "if bad:", "    dist.barrier()", "dist.all_reduce(x)")  # fmt: skip
    calls = {0: ["broadcast[8]@main:5", "all_reduce[8]@main:10 !"], 1: ["broadcast[8]@main:7", "barrier@main:9 !"]}
    found = only(make_case(calls, world=2, source=source))
    assert (found.culprit_ranks, found.location and found.location.line) == ((0, 1), 9)
    assert "Only one of them is conditional" in found.because
    assert "main (train.py:10) and rank 1 was in barrier() from main (train.py:9)" in found.title


def test_two_against_two_by_a_bound_on_the_rank() -> None:
    source = program("if rank < 2:", "    dist.barrier()", "dist.all_reduce(x)")
    calls = {r: [MEET, "barrier@main:5 !" if r < 2 else "all_reduce[8]@main:6 !"] for r in range(4)}
    assert only(make_case(calls, source=source)).culprit_ranks == (0, 1)


def test_those_who_alone_may_fail_a_condition_left_the_call_out() -> None:
    source = "def step():\n    if rank == 1 and bad:\n        return\n    dist.all_reduce(x)\n\ndef main():\n    step()\n    dist.barrier()\n"
    calls = {
        0: ["all_gather[8]@main:6", "all_reduce[8]@main:7>step:4 !"],
        1: ["all_gather[8]@main:6", "barrier@main:8 !"],
    }
    found = only(make_case(calls, world=2, source=source))
    assert (found.culprit_ranks, found.location and found.location.line) == ((1,), 2)
    assert (
        found.title
        == "rank 1 skipped the all_reduce of rank 0: `if rank == 1 and bad` (train.py:2) leads past train.py:4"
    )


def test_of_a_file_written_after_the_job_no_condition_is_claimed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(program("if rank == 0:", "    dist.barrier()", "dist.all_reduce(x)"))
    written_ns = file.stat().st_mtime_ns
    case = tie("", 5, 6)
    stacks = tuple(tuple(replace(f, file=str(file)) for f in stack) for stack in case.calls.stacks)

    def told(started_ns: int) -> Finding:
        return only(
            replace(case, calls=replace(case.calls, stacks=stacks), job=replace(case.job, started_ns=started_ns))
        )

    assert told(written_ns + 10**9).culprit_ranks == (0,)
    later = told(written_ns - 10**9)
    assert (later.culprit_ranks, later.fixes) == ((0, 1), ())
    assert "runs only if" not in later.because
    os.remove(file)


def test_a_call_left_out_by_a_check_of_data_is_answered_with_words_on_that_decision() -> None:
    source = program("for batch in loader:", "    log(loss)", "    if torch.isnan(loss):", "        continue",
                     "    loss.backward()")  # fmt: skip
    log, backward = "all_gather[1]@main:5", "all_reduce[72]@main:8>~backward"
    past = [log, backward, log, backward, log]
    calls = {r: [*past, f"{log if r == 2 else backward} !"] for r in range(3)}
    found = only(make_case(calls, world=3, source=source))
    assert found.culprit_ranks == (2,)
    first, *others = found.fixes
    assert "on all of them or on none" in first.title
    assert "flag = torch.tensor(float(bool(not torch.isnan(loss))))\ndist.all_reduce(flag" in first.advice
    assert not any(fix.helps for fix in others)


def gone(source: str, *calls_of_0: str, rank_1: tuple[str, ...] = (MEET,), world: int = 2, where: str = "") -> Case:
    """Rank 0 is in its last call; the other ranks came to the end of their program."""
    calls = {0: [*calls_of_0[:-1], f"{calls_of_0[-1]} !"], **{r: list(rank_1) for r in range(1, world)}}
    exits = {r: ended("exit", 0, where=where) for r in range(1, world)}
    return make_case(calls, world=world, source=source, exits=exits)


def test_a_call_under_a_rank_condition_that_the_one_who_ended_never_made() -> None:
    source = program("if rank == 0:", "    dist.all_reduce(x)", "dist.all_reduce(x)")
    last = gone(source, MEET, "all_reduce[8]@main:5")
    between = gone(source, MEET, "all_reduce[8]@main:5", "all_reduce[8]@main:6", rank_1=(MEET, "all_reduce[8]@main:6"))
    called_exit = gone(source, MEET, "all_reduce[8]@main:5", where="main:7")
    for case in (last, between, called_exit):
        found = only(case)
        assert (found.rule, found.culprit_ranks, found.location and found.location.line) == (DIVERGED, (0,), 5)
        assert found.title == "rank 0 called all_reduce alone: train.py:5 runs only on rank 0 (`if rank == 0`)"


def test_a_round_that_only_the_one_who_ended_may_leave_out() -> None:
    source = program(
        "for step in range(9):", "    if rank == 1 and step == 4:", "        continue", "    dist.all_reduce(x)"
    )
    found = only(gone(source, *[MEET, *["all_reduce[8]@main:7"] * 3], rank_1=(MEET, *["all_reduce[8]@main:7"] * 2)))
    assert (found.rule, found.culprit_ranks, found.location and found.location.line) == (DIVERGED, (1,), 7)
    assert found.title.startswith("rank 1 skipped the all_reduce of rank 0: train.py:7 runs only if `not (rank == 1")


def test_who_ended_is_named_where_nothing_else_is_known_and_not_for_sure() -> None:
    found = only(gone(program("dist.all_reduce(x)", "dist.barrier()"), MEET, "all_reduce[8]@main:4"))
    assert (found.rule, found.culprit_ranks) == (ENDED_EARLY, (1,))
    assert 0.5 < found.confidence < 0.7
    assert "Rank 0 waited in all_reduce(8) #2 of main (train.py:4)" in found.because
    assert "or its peer made one more" in found.because


def test_a_round_that_a_check_of_data_may_have_left_out_is_not_told_as_a_lack_of_data() -> None:
    guarded = program("for batch in loader:", "    if torch.isnan(loss):", "        continue", "    dist.all_reduce(x)")
    plain = program("for batch in loader:", "    dist.all_reduce(x)")
    for source, line, rule in ((guarded, 7, ENDED_EARLY), (plain, 5, "uneven-inputs")):
        step = f"all_reduce[8]@main:{line}"
        calls = {r: [MEET, step, step, f"{step} !"] for r in range(3)} | {3: [MEET, step, step]}
        found = only(make_case(calls, source=source, exits={3: ended("exit", 0)}))
        assert (found.rule, found.culprit_ranks) == (rule, (3,))


def test_one_that_makes_a_call_more_than_all_who_ended_is_odd() -> None:
    found = only(gone(program("dist.all_reduce(x)"), MEET, "all_reduce[8]@main:4", world=4))
    assert (found.rule, found.culprit_ranks) == (DIVERGED, (0,))


def test_no_fix_ends_in_words_that_lead_to_nothing() -> None:
    texts = [
        (rule.id, text)
        for rule in all_rules()
        for example in load_examples()[rule.id]
        if isinstance(example, Fires)
        for finding in judge(example.case, [rule]).findings
        for fix in finding.fixes
        for text in (fix.title, fix.patch, fix.advice, fix.command, fix.setting, fix.verify, fix.undo)
    ]
    assert len(texts) > 500
    assert [t for t in texts if t[1].rstrip().endswith((":", " under", " if")) or "an unknown line" in t[1]] == []
    assert [
        t
        for t in texts
        if "the condition:" in t[1] or " None" in t[1].replace("is None", "").replace("is not None", "")
    ] == []
