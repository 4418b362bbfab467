"""What looks from outside allow to say: whether a job moves, who waits for whom, and that the innocent stay innocent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from unhang.analyze.situation import Situation
from unhang.analyze.waits.standing import Word
from unhang.model import Case, Frame, Job, Outcome, ProcessState, RankEvidence, RankIdentity, ThreadStack
from unhang.model.evidence import Look
from unhang.rules.registry import judge
from unhang.testing import make_case

TORCH = "/x/site-packages/torch/distributed/distributed_c10d.py"


def rank_at(
    rank: int,
    op: str | None,
    line: int = 10,
    *,
    moved: bool | None = False,
    changed: bool = False,
    group: bool = False,
    function: str = "main",
    state: str = "S",
    library: tuple[Frame, ...] = (),
) -> RankEvidence:
    """A rank in a call (`op`), or in its own code at a line."""
    inner = (Frame(TORCH, 3000, op),) if op else library
    frames = (*inner, Frame("/x/train.py", line, function), Frame("/x/train.py", 99, "<module>"))
    stack = ThreadStack("MainThread", frames, is_main=True, process_id=100 + rank, os_thread_id=100 + rank)
    look = Look(5, 3.0, moved, "as told", changed, group)
    return RankEvidence(RankIdentity(rank, pid=100 + rank), (stack,), ProcessState(state, 0.0), look=look)


def case_of(*ranks: RankEvidence, world: int | None = None, **more: Any) -> Case:
    return Case(Job(world_size=world or len(ranks)), {r.rank: r for r in ranks}, **more)


def said(case: Case) -> tuple[Outcome, tuple[int, ...]]:
    """The outcome, and all who are accused."""
    diagnosis = judge(case)
    return diagnosis.outcome, tuple(sorted({r for f in diagnosis.findings for r in f.culprit_ranks}))


def text_of(case: Case) -> str:
    standing = Situation(case).standing
    assert standing is not None
    return standing.text


def test_a_rank_that_sleeps_while_all_others_wait_has_not_reached_the_call() -> None:
    case = case_of(*(rank_at(r, "all_reduce") for r in (0, 2, 3)), rank_at(1, None, 20))
    diagnosis = judge(case)
    assert said(case) == (Outcome.STALLED, (1,))
    assert "has not reached all_reduce (train.py:10)" in diagnosis.findings[0].title
    assert diagnosis.findings[0].location is not None
    assert diagnosis.findings[0].location.line == 20
    assert diagnosis.findings[0].confidence <= 0.8
    assert diagnosis.exit_code == 1


@pytest.mark.parametrize(
    ("awaited", "outcome"),
    [
        ({"moved": True}, Outcome.MOVES),
        ({"moved": None}, Outcome.UNKNOWN),
        ({"moved": None, "changed": True}, Outcome.UNKNOWN),
    ],
)
def test_whoever_moves_or_may_move_is_not_accused(awaited: Mapping[str, Any], outcome: Outcome) -> None:
    case = case_of(rank_at(0, None, 20, **awaited), *(rank_at(r, "barrier") for r in (1, 2, 3)))
    assert said(case) == (outcome, ())
    standing = Situation(case).standing
    assert standing is not None
    assert "ranks 1-3 wait in barrier (train.py:10) for rank 0" in standing.text


def test_ranks_that_go_from_call_to_call_move_whatever_another_one_does() -> None:
    case = case_of(rank_at(0, "all_reduce", moved=True), rank_at(1, "all_reduce"), rank_at(2, None))
    assert said(case) == (Outcome.MOVES, ())


def test_all_in_the_same_call_accuses_nobody_and_says_what_it_means() -> None:
    case = case_of(*(rank_at(r, "all_reduce") for r in range(4)))
    assert said(case) == (Outcome.STALLED, ())
    assert "nobody is accused" in text_of(case)


def test_the_few_in_another_call_are_apart() -> None:
    case = case_of(rank_at(0, "broadcast", 30), *(rank_at(r, "barrier", 40) for r in (1, 2, 3)))
    assert said(case) == (Outcome.STALLED, (0,))


def test_two_against_two_accuses_nobody() -> None:
    case = case_of(*(rank_at(r, "broadcast", 30) for r in (0, 1)), *(rank_at(r, "barrier", 40) for r in (2, 3)))
    assert said(case) == (Outcome.STALLED, ())


def test_a_call_of_a_group_that_was_given_does_not_tell_who_is_missing() -> None:
    """Ranks 2 and 3 may be no members."""
    case = case_of(*(rank_at(r, "all_reduce", group=True) for r in (0, 1)), *(rank_at(r, None, 20) for r in (2, 3)))
    assert said(case) == (Outcome.UNKNOWN, ())


def test_the_few_in_a_call_of_a_group_are_not_accused() -> None:
    """Rank 0 may be where it belongs, and rank 1 have left out the call of their group."""
    case = case_of(rank_at(0, "all_reduce", 30, group=True), *(rank_at(r, "barrier", 40) for r in (1, 2, 3)))
    assert said(case) == (Outcome.STALLED, ())


def test_nobody_waits_where_all_compute() -> None:
    case = case_of(*(rank_at(r, None, 20, moved=None, changed=True) for r in range(4)))
    assert said(case) == (Outcome.MOVES, ())


def test_all_that_sleep_at_once_cannot_be_judged() -> None:
    case = case_of(*(rank_at(r, None, 20) for r in range(4)))
    assert said(case) == (Outcome.UNKNOWN, ())
    assert judge(case).exit_code == 3


def test_ranks_of_nodes_that_were_not_looked_at_are_unknown_not_dead() -> None:
    case = case_of(*(rank_at(r, "all_reduce") for r in (0, 1)), world=4, out_of_sight=(2, 3))
    assert said(case) == (Outcome.UNKNOWN, ())
    assert "ranks 2, 3 were not looked at" in text_of(case)


def test_a_rank_without_a_process_on_this_machine_is_missing() -> None:
    case = case_of(*(rank_at(r, "all_reduce") for r in (0, 1, 3)), world=4)
    standing = Situation(case).standing
    assert standing is not None
    assert standing.word is Word.STALLED
    assert "of rank 2 there is no process here" in standing.text


def test_a_stopped_rank_is_frozen() -> None:
    case = case_of(*(rank_at(r, "all_reduce") for r in (0, 2, 3)), rank_at(1, "all_reduce", state="T"))
    assert said(case) == (Outcome.STALLED, (1,))
    assert judge(case).findings[0].cause == "rank-frozen"


def test_a_condition_on_the_rank_tells_who_is_odd(tmp_path: Any) -> None:
    """Also of two against two; not where the other side stands below the opposite one, nor of a group that was given."""
    both = "def main():\n    if rank < 2:\n        report()\n    dist.barrier()\n\n\ndef report():\n    dist.all_reduce(x)\n"

    programs: list[Any] = []  # each in a file of its own: what was read of one is kept

    def program() -> Any:
        return programs[-1]

    def at(rank: int, op: str, *lines: tuple[int, str], group: bool = False) -> RankEvidence:
        frames = (Frame(TORCH, 3000, op), *(Frame(str(program()), line, name) for line, name in lines))
        stack = ThreadStack("MainThread", frames, is_main=True, process_id=100 + rank, os_thread_id=100 + rank)
        look = Look(5, 3.0, False, "as told", False, group)
        return RankEvidence(RankIdentity(rank, pid=100 + rank), (stack,), ProcessState("S", 0.0), look=look)

    def found(text: str, ranks: int, **more: Any) -> Any:
        programs.append(tmp_path / f"{len(programs)}" / "train.py")
        program().parent.mkdir()
        program().write_text(text)
        odd = (at(r, "all_reduce", (8, "report"), (3, "main"), **more) for r in range(ranks))
        return judge(case_of(*odd, *(at(r, "barrier", (4, "main")) for r in range(ranks, 4)))).findings[0]

    first = found(both, 2)
    assert (first.culprit_ranks, first.location.line, first.condition.text) == ((0, 1), 3, "rank < 2")
    assert first.title == "ranks 0, 1 called all_reduce without ranks 2, 3: train.py:3 runs only if `rank < 2`"
    assert found(both.replace("rank < 2", "rank == 0"), 1).title.endswith("runs only on rank 0 (`if rank == 0`)")
    assert found(both.replace("rank < 2", "busy"), 2).culprit_ranks == ()
    assert (
        found(
            both.replace("    dist.b", "    else:        dist.b").replace("    else:        ", "    if rank > 1: "), 2
        ).condition
        is None
    )
    assert found(both, 2, group=True).culprit_ranks == ()


def test_where_dumps_of_all_ranks_are_there_their_calls_tell_who_waits() -> None:
    """All stand at one line for the stacks; by the calls rank 2 has not issued the last one."""
    calls = {r: ["all_reduce[8]@main:10", "all_reduce[8]@main:10 !"] for r in (0, 1, 3)} | {
        2: ["all_reduce[8]@main:10"]
    }
    recorded = make_case(calls)
    case = replace(case_of(*(rank_at(r, "all_reduce") for r in (0, 1, 3)), rank_at(2, None, 20)), calls=recorded.calls)
    waits = Situation(case).waits
    assert {e.seq for e in waits.edges} == {2}
    assert said(case) == (Outcome.STALLED, (2,))


def at_device(rank: int, folder: Any, moved: bool | None = None, changed: bool = False) -> RankEvidence:
    """A rank at a line that waits for its device: for a collective, or for its own kernels."""
    program = folder / "step.py"
    program.write_text("def main():\n    total += loss.item()\n")
    frames = (Frame(str(program), 2, "main"),)
    stack = ThreadStack("MainThread", frames, is_main=True, process_id=100 + rank, os_thread_id=100 + rank)
    look = Look(5, 3.0, moved, "", changed)
    return RankEvidence(RankIdentity(rank, pid=100 + rank), (stack,), ProcessState("R", 1.0), look=look)


def test_all_that_wait_for_their_devices_may_compute(tmp_path: Any) -> None:
    """A step of ten seconds looks the same."""
    assert said(case_of(*(at_device(r, tmp_path) for r in range(4)))) == (Outcome.UNKNOWN, ())


def test_whoever_waits_for_its_device_is_not_in_another_call(tmp_path: Any) -> None:
    """It may compute what comes before the barrier."""
    case = case_of(rank_at(0, "barrier"), *(at_device(r, tmp_path, moved=False) for r in (1, 2, 3)))
    assert said(case) == (Outcome.UNKNOWN, ())


def test_devices_wait_for_the_rank_that_sleeps(tmp_path: Any) -> None:
    case = case_of(rank_at(1, None, 20), *(at_device(r, tmp_path) for r in (0, 2, 3)))
    assert said(case) == (Outcome.STALLED, (1,))


def test_a_loop_that_waits_for_its_device_in_every_step_moves(tmp_path: Any) -> None:
    """All looks show the same line; the variables tell."""
    assert said(case_of(*(at_device(r, tmp_path, changed=True) for r in range(4)))) == (Outcome.MOVES, ())


def test_an_endless_loop_that_asks_its_device_is_not_said_to_move(tmp_path: Any) -> None:
    case = case_of(at_device(1, tmp_path, changed=True), *(rank_at(r, "all_reduce") for r in (0, 2, 3)))
    assert said(case) == (Outcome.UNKNOWN, ())
    assert "for rank 1" in text_of(case)


def _making(rank: int, number: int | None) -> RankEvidence:
    evidence = rank_at(rank, "new_group")
    assert evidence.look is not None
    return replace(evidence, look=replace(evidence.look, group_number=number))


def test_who_has_made_fewer_groups_than_the_others_left_one_out() -> None:
    case = case_of(*(_making(r, 2) for r in (0, 1, 2)), _making(3, 1))
    assert said(case) == (Outcome.STALLED, (3,))
    assert "ranks 0-2 wait in new_group #2" in judge(case).findings[0].title
    recorded = make_case({r: ["all_reduce[8]@main:5"] for r in range(4)}, world=4).calls
    assert said(replace(case, calls=recorded)) == (Outcome.STALLED, (3,))  # a dump keeps nothing of such a wait


@pytest.mark.parametrize("numbers", [(2, 2, 2, 2), (2, 2, 1, 1), (None, None, None, None)])
def test_groups_that_all_make_or_that_halves_make_accuse_nobody(numbers: tuple[int | None, ...]) -> None:
    assert said(case_of(*(_making(r, n) for r, n in enumerate(numbers)))) == (Outcome.STALLED, ())
