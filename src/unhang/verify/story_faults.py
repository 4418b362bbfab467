"""All faults of the stories' tables in one go: each is run, and its verdict laid beside the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from unhang.model import Outcome
from unhang.model.rank_sets import name_ranks
from unhang.verify import runs
from unhang.verify.runs import HowToRun, Run
from unhang.verify.stories import Fault, Story, command_of

Show = Callable[[str], None]


def play_faults(stories: Iterable[Story], folder: Path, how: HowToRun, show: Show = print) -> int:
    """Runs each fault of the stories, with its report in `folder`; a line for each. Returns the exit code: 1 if any verdict is wrong.

    Blocks: as long as the trainings, each up to the limit of `how`.
    """
    count = right = 0
    for story in stories:
        for fault in story.faults:
            found = _run(story, fault, folder / story.name / fault.name, how)
            is_right = agrees(fault, found)
            count, right = count + 1, right + is_right
            told = _said(found.diagnosis.outcome, found.cause, _culprits(found))
            truth = "" if is_right else f"; the truth is {_said(Outcome(fault.outcome), fault.cause, fault.culprits)}"
            show(f"{'right' if is_right else 'WRONG'}  {story.name} {fault.name}: {told}{truth}")
    show(f"{right} of {count} verdicts are right; the reports are in {folder}")
    return 0 if right == count else 1


def _run(story: Story, fault: Fault, folder: Path, how: HowToRun) -> Run:
    program = folder / "program"
    story.copy(program, is_fixed=False)
    ends = fault.outcome != "clean"  # what goes on by itself is not ended
    how = replace(how, cwd=program, abort_after_s=how.abort_after_s if ends else None)
    return runs.make_run(command_of(f"{story.fixed} --fault {fault.name}"), folder, how)


def agrees(fault: Fault, run: Run) -> bool:
    """Whether the verdict of a run is the truth about the fault: outcome, cause and culprits."""
    named = _culprits(run)
    is_them = (
        bool(named) and set(named) <= set(fault.culprits) if fault.any_culprit else set(named) == set(fault.culprits)
    )
    return run.diagnosis.outcome == fault.outcome and run.cause == fault.cause and is_them


def _culprits(run: Run) -> tuple[int, ...]:
    return tuple(run.findings[0].culprit_ranks) if run.findings else ()


def _said(outcome: Outcome, cause: str, ranks: tuple[int, ...]) -> str:
    return ", ".join(part for part in (outcome.value, cause, name_ranks(ranks, 4) if ranks else "") if part)
