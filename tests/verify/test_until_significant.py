"""`unhang verify --until-significant`: so many runs as it takes, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.verify.made_runs import clean_run, hung_run
from unhang import verify as runs
from unhang.cli.verify import command
from unhang.errors import WrongUsage
from unhang.model import HangObservation
from unhang.verify import HowToRun, Run, runs_of
from unhang.verify.before_after import Share, chance_of_luck, enough


def failed_after(seconds: float) -> Run:
    run = hung_run()
    hang = HangObservation("proven", seconds, 2.0)
    return replace(run, diagnosis=replace(run.diagnosis, hang=hang), seconds=seconds + 2)


def passed(seconds: float = 10.0) -> Run:
    return replace(clean_run(), seconds=seconds)


def test_a_failure_is_enough() -> None:
    assert enough([failed_after(5)], [passed(), hung_run()]) == "a run failed"


def test_by_the_share_of_runs_that_failed() -> None:
    before = [failed_after(5), failed_after(5), passed()]
    needed = next(n for n in range(1, 100) if enough(before, [passed()] * n))
    luck = [chance_of_luck(Share(2, 3), Share(0, n)) for n in (needed - 1, needed)]
    assert luck[0] is not None
    assert luck[1] is not None
    assert luck[0] > 0.05 >= luck[1]


@pytest.mark.parametrize(("lasted", "is_enough"), [(94.0, False), (96.0, True)])
def test_by_the_time_of_the_one_failure_that_is_known(lasted: float, is_enough: bool) -> None:
    told = enough([failed_after(5)], [passed(lasted / 2)] * 2)
    assert bool(told) is is_enough
    assert not is_enough or told == "96 s without a failure, which had come after 5 s: 95 % sure"


def test_the_runs_end_when_there_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Iterator[Run] = iter([passed(50), passed(50), passed(50)])
    monkeypatch.setattr(runs, "make_run", lambda *_: next(made))
    said: list[str] = []
    before = [failed_after(5)]
    found = runs_of(
        "after", (), ["true"], 100, tmp_path, HowToRun(60), said.append, lambda after: enough(before, after)
    )
    assert len(found) == 2
    assert said[-1] == "after: no more runs: 100 s without a failure, which had come after 5 s: 95 % sure"


@pytest.mark.parametrize("words", [["--", "true"], ["--before", "x", "--after", "y"]])
def test_it_needs_a_before_and_a_command(words: list[str]) -> None:
    result = CliRunner().invoke(command, ["--until-significant", *words], standalone_mode=False)
    assert isinstance(result.exception, WrongUsage)
