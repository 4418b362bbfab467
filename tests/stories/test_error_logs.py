"""The real logs of the second story, `.err` and `.out` without times: what they establish is told, and no more."""

from __future__ import annotations

from pathlib import Path

from unhang.diagnosis import judge_paths
from unhang.model import Diagnosis, Outcome

LOGS = Path(__file__).with_name("error_logs")


def judged(*names: str) -> Diagnosis:
    return judge_paths([LOGS / name for name in names]).diagnosis


def test_who_was_missing_is_told_of_a_known_world_and_no_cause_is_made_up() -> None:
    found = judged("t2.13920881.err", "t2.13920881.out")
    assert (found.outcome, found.job.world_size) == (Outcome.HANG, 2)
    (finding,) = found.findings
    assert (finding.cause, finding.culprit_ranks) == ("unknown", (0,))  # who, not why
    assert "rank 1 waited in ALLREDUCE #668 of 52 elements" in finding.title
    assert "rank 0 reported no wait" in finding.title
    assert found.next_steps


def test_an_environment_that_changed_under_the_job_is_told_beside_a_job_that_learned_nothing() -> None:
    found = judged("t2.13966160.err", "t2.13966160.out")
    roots = {f.rule: f for f in found.findings if f.consequence_of is None}
    assert list(roots) == ["environment-changed", "not-learning"]
    assert (
        "began with Python 3.8, and processes started later run 3.9 and lack 'argparse'"
        in roots["environment-changed"].title
    )
    assert any(
        "took 543 to 655 s, of which 522 to 631 s were over before its batch was there" in n for n in found.notes
    )


def test_three_days_without_learning_and_a_loader_that_takes_minutes_to_start() -> None:
    found = judged("T1.13967221.out")
    assert [(f.rule, f.consequence_of) for f in found.findings] == [("not-learning", None), ("slow-steps", None)]
    assert "takes up to 666 s, 641 s of it before its batch is there" in found.findings[1].title


def test_what_one_job_printed_is_no_evidence_on_another() -> None:
    found = judge_paths(sorted(LOGS.glob("*.err")) + sorted(LOGS.glob("*.out"))).diagnosis
    changed = next(f for f in found.findings if f.rule == "environment-changed")
    assert {line.source.partition(".")[0] for line in changed.evidence} == {"t2"}
