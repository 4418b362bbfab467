"""How a job ended decides what its waits and failures prove: exit code 0, and signals from outside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.analyze.failures import asked_to_end
from unhang.analyze.situation import Situation
from unhang.model import Case, LogEvent, Outcome, Source
from unhang.testing import ended, judge, make_case, raised

CALLS = {0: ["all_reduce[8]@main:4 !"], 1: []}
SIGTERM = {r: ended("signal", -15, at_s=30) for r in (0, 1)}


def stopped(quiet_s: float | None, usual_s: float) -> Case:
    """Rank 0 waits for rank 1 in its own code, and both were told to end, so long after the last movement."""
    quiet = {"quiet_s": quiet_s, "usual_quiet_s": usual_s}
    return make_case(
        CALLS,
        world=2,
        hang=None,
        exit_code=124,
        stacks={0: "main:4>~comm", 1: "main:7"},
        exits=SIGTERM,
        more={0: quiet, 1: quiet},
    )


def test_a_job_that_a_time_limit_ended_in_a_lasting_wait_hung() -> None:
    found = judge(stopped(20, 0.5))
    assert (found.outcome, found.findings[0].culprit_ranks) == (Outcome.HANG, (1,))


@pytest.mark.parametrize(("quiet_s", "usual_s"), [(2, 0.1), (20, 15), (0, 0), (None, 0)])
def test_a_time_limit_that_meets_a_job_between_two_steps_accuses_nobody(quiet_s: float | None, usual_s: float) -> None:
    """The calls come from a look at it, after which it may have moved; a long step is no hang."""
    found = judge(stopped(quiet_s, usual_s))
    assert found.outcome is not Outcome.HANG
    assert [f.culprit_ranks for f in found.findings if f.culprit_ranks] == []


def test_exit_code_0_is_never_a_crash() -> None:
    """What started the ranks took their failure for handled."""
    errors = {1: "ValueError: retry me@main:3"}
    found = judge(make_case(world=2, hang=None, exit_code=0, errors=errors, exits={1: ended("exit", 1)}))
    assert (found.outcome, found.findings) == (Outcome.CLEAN, ())
    assert judge(make_case(world=2, hang=None, exit_code=1, errors=errors)).outcome is Outcome.CRASH


def test_who_was_told_alone_is_told_from_those_whom_the_launcher_ended() -> None:
    """All three got SIGTERM, within a second; torchrun names the pids that it ended."""
    exits = {r: ended("signal", -15, at_s=30 + r / 10) for r in (1, 0, 2)}
    exits[1] = ended("signal", -15, at_s=29)
    case = make_case(world=3, hang=None, exit_code=1, exits=exits)
    said = [
        LogEvent("elastic.closing_signal", "", Source("output"), fields={"pid": str(case.ranks[r].identity.pid)})
        for r in (0, 2)
    ]
    told = replace(case, events=tuple(said))
    assert [f and f.rank for f in (asked_to_end(c, Situation(c).failures) for c in (told, case))] == [1, None]


def test_a_rank_that_had_failed_by_itself_is_not_ended_from_outside() -> None:
    """Two ranks raise the same exception, hang in their end, and the launcher ends both with the rank that lost them."""
    calls = {0: ["barrier@main:5 !"], **{r: [] for r in (1, 2)}}
    own, lost = (
        "FileNotFoundError: [Errno 2] No such file: 'out/a'@main:4",
        "RuntimeError: Connection closed by peer [10.0.0.1]:1@main:5",
    )
    errors = {0: raised(lost, at_s=21), **{r: raised(own, at_s=20 + r / 10) for r in (1, 2)}}
    case = make_case(
        calls,
        world=3,
        hang=None,
        exit_code=1,
        errors=errors,
        exits={r: ended("signal", -15, at_s=30) for r in range(3)},
    )
    assert [(f.rank, f.secondary) for f in Situation(case).failures] == [(1, False), (2, False), (0, True)]


@pytest.mark.parametrize(("ended_s", "is_the_launchers"), [(22, False), (20, True)])
def test_no_launcher_kills_before_a_process_has_ended(ended_s: float, is_the_launchers: bool) -> None:
    """Rank 0 loses rank 1 a moment before the watcher learns that rank 1 was killed; it ends after that, or before."""
    lost = raised("RuntimeError: Connection closed by peer [10.0.0.1]:1@main:5", at_s=19.9)
    exits = {0: ended("signal", -15, at_s=ended_s), 1: ended("signal", -9, at_s=21)}
    case = make_case({}, world=2, hang=None, exit_code=1, errors={0: lost}, exits=exits)
    killed = next(f for f in Situation(case).failures if f.rank == 1)
    assert killed.secondary is is_the_launchers
