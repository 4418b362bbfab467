"""The soak: schedules, the order of runs, what counts as found, and one real fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unhang.errors import UnreadableInput, WrongUsage
from unhang.verify import HowToRun, Run, RunFailed, exit_code_of, soak
from unhang.verify.soak import ScheduledFault, Stretch, read_schedule, run_soak, soak_checks, soak_json, soak_text

from .made_runs import clean_run, hung_run
from .test_verify_command import JOB

INJECT = "import sys; from unhang.cli.reproduce import inject; sys.exit(inject.main(standalone_mode=False))"
KNOWN = {"skip_collective": "code-divergence", "sigkill": "rank-crashed-earlier", "clock_jump": ""}
SKIP = ScheduledFault("skip_collective:rank=0", 1.0, "code-divergence")


def test_schedules(tmp_path: Path) -> None:
    given = read_schedule("sigkill:rank=1,step=5@2, skip-collective@0.5", KNOWN, 600)
    assert given == (
        ScheduledFault("skip-collective", 0.5, "code-divergence"),
        ScheduledFault("sigkill:rank=1,step=5", 2.0, "rank-crashed-earlier"),
    )
    path = tmp_path / "faults.toml"
    path.write_text(
        '[[fault]]\nfault = "sigkill:rank=1,step=5"\nat_minute = 2\n'
        '[[fault]]\nfault = "skip_collective"\nat_minute = 0.5\nexpected_cause = "uneven-inputs"\n'
    )
    assert [(f.at_minute, f.expected_cause) for f in read_schedule(str(path), KNOWN, 600)] == [
        (0.5, "uneven-inputs"),
        (2.0, "rank-crashed-earlier"),
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sigkil@1", "did you mean sigkill?"),
        ("sigkill", "NAME[:KEY=VALUE,...]@MINUTE"),
        ("sigkill@1,", ""),
        ("sigkill@x", "NAME[:KEY=VALUE,...]@MINUTE"),
        ("", "NAME[:KEY=VALUE,...]@MINUTE"),
        ("sigkill@10", "does not lie within the 10 minutes"),
    ],
)
def test_schedules_that_make_no_sense(text: str, part: str) -> None:
    if not part:
        assert read_schedule(text, KNOWN, 600)
        return
    with pytest.raises(WrongUsage) as raised:
        read_schedule(text, KNOWN, 600)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[fault]\n", "[[fault]] tables"),
        ('[[fault]]\nfault = "sigkill"\n', "needs fault (a text) and at_minute"),
        ('[[fault]]\nfault = "sigkill"\nat_minute = 1\nexpected_cause = "x"\n', "no cause 'x'"),
        ('[[fault]]\nfault = "sigkill"\nat_minute = 1\nwhen = 2\n', "not 'when'"),
        ("[[fault]\n", "faults.toml"),
    ],
)
def test_files_that_make_no_sense(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises((WrongUsage, UnreadableInput)) as raised:
        read_schedule(str(path), KNOWN, 600)
    assert part in str(raised.value)


class Bench:
    """Runs that take 40 seconds by a clock of ours. `answers`: what the run with a fault leaves."""

    def __init__(self, answer: Run, healthy: Run | None = None, has_happened: bool = True) -> None:
        self.now_s, self.answer, self.healthy, self.has_happened = 0.0, answer, healthy or clean_run(), has_happened
        self.commands: list[list[str]] = []

    def make(self, command: Sequence[str], folder: Path, how: HowToRun) -> Run:
        self.now_s += 40
        self.commands.append(how.command(folder, command))
        if not how.before:
            return self.healthy
        record = Path(how.before[how.before.index("--record") + 1])
        if self.has_happened:
            record.write_text(json.dumps({"event": "happened", "rank": 0, "fault": "skip_collective"}) + "\n{cut")
        return self.answer

    def soak(self, folder: Path, *faults: ScheduledFault, minutes: float = 4) -> list[Stretch]:
        said: list[str] = []
        return run_soak(
            ["job"], faults, minutes * 60, folder, HowToRun(), said.append, self.make, clock=lambda: self.now_s
        )


def test_faults_come_in_their_minute_with_healthy_runs_between(tmp_path: Path) -> None:
    bench = Bench(hung_run())
    stretches = bench.soak(tmp_path, SKIP, replace(SKIP, at_minute=1.1), replace(SKIP, at_minute=3.9))
    assert ["fault" if s.fault else "healthy" for s in stretches] == [
        "healthy",
        "healthy",
        "fault",
        "healthy",
        "fault",
        "healthy",
        "fault",
    ]
    assert [s.run is None for s in stretches] == [False] * 6 + [True]
    checks = soak_checks(stretches)
    assert [c.verdict.value for c in checks] == ["pass"] * 6 + ["skipped"]
    assert exit_code_of(checks) == 3
    assert "inject" in bench.commands[2]
    assert bench.commands[2][-2:] == ["--", "job"]
    assert not [word for word in bench.commands[1] if word == "inject"]
    assert "faults found: 2 of 2" in soak_text(stretches, checks)
    assert "SOAK NOT JUDGED" in soak_text(stretches, checks)


@pytest.mark.parametrize(
    ("bench", "fault", "code", "part"),
    [
        (Bench(hung_run()), SKIP, 0, "rank 0"),
        (Bench(clean_run()), SKIP, 1, "nothing was found instead of code-divergence"),
        (Bench(hung_run()), replace(SKIP, expected_cause="gpu-oom"), 1, "code-divergence was found instead of gpu-oom"),
        (Bench(hung_run(), has_happened=False), SKIP, 3, "never happened"),
        (Bench(clean_run()), replace(SKIP, expected_cause=""), 0, "clean"),
        (Bench(hung_run()), replace(SKIP, expected_cause=""), 1, "accused: code-divergence"),
    ],
)
def test_what_counts_as_found(tmp_path: Path, bench: Bench, fault: ScheduledFault, code: int, part: str) -> None:
    stretches = bench.soak(tmp_path, fault, minutes=1.5)
    checks = soak_checks(stretches)
    assert exit_code_of(checks) == code, checks
    assert part in next(c.reason for c, s in zip(checks, stretches, strict=True) if s.fault)


def test_an_innocent_rank_named_is_a_failure() -> None:
    stretch = Stretch(1, 0, SKIP, hung_run(), has_happened=True, hit_ranks=(2,))
    check = soak_checks([stretch])[0]
    assert check.verdict.value == "fail"
    assert "rank 0 was named, and rank 2 was struck" in check.reason


def test_naming_every_rank_is_no_answer() -> None:
    run = hung_run()
    everybody = replace(run.diagnosis.findings[0], culprit_ranks=(0, 1, 2))
    run = replace(run, diagnosis=replace(run.diagnosis, findings=(everybody,)))
    few, all_three = (Stretch(1, 0, SKIP, run, has_happened=True, hit_ranks=hit) for hit in ((1,), (0, 1, 2)))
    assert [check.verdict.value for check in soak_checks([few, all_three])] == ["fail", "pass"]
    assert "every rank was named, and rank 1 was struck" in soak_checks([few])[0].reason


def test_a_healthy_run_that_is_not_silent_fails_the_soak(tmp_path: Path) -> None:
    stretches = Bench(hung_run(), healthy=hung_run()).soak(tmp_path, SKIP, minutes=1)
    checks = soak_checks(stretches)
    assert exit_code_of(checks) == 1
    assert soak_text(stretches, checks).startswith("SOAK FAILED: run 1: healthy: a healthy run: hang: code-divergence")
    told: dict[str, Any] = json.loads(soak_json(stretches, checks))
    assert [run["verdict"] for run in told["runs"]] == ["fail", "fail", "skipped"]


def test_a_run_without_evidence_goes_into_the_answer(tmp_path: Path) -> None:
    def make(command: Sequence[str], folder: Path, how: HowToRun) -> Run:
        raise RunFailed("the run left no evidence")

    ticks = iter(range(0, 1000, 30))
    stretches = run_soak(["job"], [], 60, tmp_path, HowToRun(), lambda _: None, make, clock=lambda: float(next(ticks)))
    assert [c.reason for c in soak_checks(stretches)] == ["the run left no evidence"]


def test_a_real_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_INJECT", (sys.executable, "-c", INJECT))
    schedule = read_schedule("sigkill:rank=1,step=5@0", soak.known_faults(), 1)
    stretches = run_soak(JOB, schedule, 1, tmp_path, HowToRun(40, 3, 2), lambda _: None)
    checks = soak_checks(stretches)
    assert exit_code_of(checks) == 0, soak_text(stretches, checks)
    assert stretches[0].hit_ranks == (1,)
    assert (tmp_path / "run-1" / "report.json").exists()
