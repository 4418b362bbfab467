"""Expectations: what may be written, and how each is judged: pass, fail, and skipped with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unhang.errors import UnreadableInput, WrongUsage
from unhang.model import ProcessGroup, Verdict
from unhang.verify import Run
from unhang.verify.expectations import KNOWN, parse_expectations, read_expectations

from .made_runs import clean_run, hung_run, stopped_run, trace_of

TIMEOUT = (
    "[rank1]:[E228 02:40:22.574313089 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=BROADCAST, NumelIn=4, NumelOut=4, Timeout(ms)=1800000) ran for 1800042 milliseconds."
)
REPLICAS = ProcessGroup("3", "unhang replicas", (0, 1))
LOSS = {"pattern": r"loss ([\d.naninf]+)"}


def said(name: str, settings: dict[str, Any], run: Run) -> tuple[Verdict, str]:
    asked = next(e for e in parse_expectations({name: settings}) if e.name == name)
    check = asked.judge(run)
    return check.verdict, check.reason


P, F, S = Verdict.PASS, Verdict.FAIL, Verdict.SKIPPED
STEADY = trace_of([0.1] * 30)
ONE_SLOW = trace_of([0.1] * 20 + [3.0] + [0.1] * 9)
SLOW_START = trace_of([9.0] + [0.1] * 29)


@pytest.mark.parametrize(
    ("name", "settings", "run", "verdict", "part"),
    [
        ("no_finding", {}, clean_run(), P, "nothing"),
        ("no_finding", {}, hung_run(), F, "code-divergence: rank 0"),
        ("no_finding", {"allow": ["code-divergence"]}, hung_run(), P, "allowed"),
        ("no_finding", {"allow": ["gpu-oom"]}, hung_run(), F, "code-divergence"),
        ("no_finding", {}, stopped_run(), F, "no established cause"),
        ("exit_code", {}, clean_run(), P, "exit code 0"),
        ("exit_code", {}, hung_run(), F, "exit code 124, not 0"),
        ("exit_code", {"is": 124}, hung_run(), P, "124"),
        ("exit_code", {}, clean_run(overran=True), F, "too long"),
        ("steps", {"min": 40}, clean_run(), P, "40 steps"),
        ("steps", {"min": 41}, clean_run(), F, "40 steps, at least 41"),
        ("steps", {"min": 1}, clean_run(steps=0), S, "no optimizer"),
        ("step_time", {"max_s": 0.2, "median_s": 0.2}, clean_run(trace=STEADY), P, "at most 0.1 s, median 0.1 s"),
        ("step_time", {"max_s": 0.2}, clean_run(trace=ONE_SLOW), F, "step 22 took 3 s"),
        ("step_time", {"median_s": 0.2}, clean_run(trace=ONE_SLOW), P, "median 0.1"),
        ("step_time", {"median_s": 0.05}, clean_run(trace=STEADY), F, "median took 0.1 s"),
        ("step_time", {"max_s": 0.2}, clean_run(trace=SLOW_START), P, "0.1"),
        ("step_time", {"max_s": 0.2, "skip_first": 0}, clean_run(trace=SLOW_START), F, "step 2 took 9 s"),
        ("step_time", {"max_s": 0.2}, clean_run(), S, "not known"),
        ("step_time", {"max_s": 0.2, "skip_first": 99}, clean_run(trace=STEADY), S, "the first 99 do not count"),
        (
            "step_time",
            {"median_s": 0.1},
            clean_run("[heartbeat] step 50: 2 ranks, median 0.2 s/step\n"),
            F,
            "0.2 s, at most 0.1 s wanted (told by the heartbeat)",
        ),
        ("step_time", {"max_s": 1}, clean_run("[heartbeat] rank 0: step 30 took 3.2 s, 4.0x\n"), F, "3.2 s"),
        ("step_time", {"max_s": 5}, clean_run("[heartbeat] rank 0: step 30 took 3.2 s, 4.0x\n"), S, "not known"),
        ("no_timeout_text", {}, clean_run("step 3\nfine\n"), P, "first 100 steps"),
        ("no_timeout_text", {}, clean_run(), S, "no log"),
        ("no_timeout_text", {}, clean_run(f"step 30\n{TIMEOUT}\n"), F, "after step 30"),
        ("no_timeout_text", {"first_steps": 20}, clean_run(f"step 30\n{TIMEOUT}\n"), P, "first 20"),
        ("no_timeout_text", {"first_steps": 20}, clean_run(f"{TIMEOUT}\n"), S, "at which step"),
        ("no_timeout_text", {"first_steps": 40}, clean_run(f"{TIMEOUT}\n"), F, "after step 40"),
        ("utilisation", {"min": 50, "pattern": r"util (\d+)"}, clean_run("util 60\nutil 90\n"), P, "75"),
        ("utilisation", {"min": 80, "pattern": r"util (\d+)"}, clean_run("util 60\nutil 90\n"), F, "75"),
        ("utilisation", {"min": 80, "pattern": r"util (\d+)"}, clean_run("nothing\n"), S, "no line"),
        ("utilisation", {"min": 0.1}, clean_run(), S, "not known"),
        ("epochs", {"min": 2}, clean_run("epoch 0 step 1\nepoch 0 step 2\nepoch 1\n"), P, "2 epochs"),
        ("epochs", {"min": 3}, clean_run("epoch 0\nepoch 1\n"), F, "2 epochs"),
        ("epochs", {"min": 3}, clean_run("words\n"), S, "no line"),
        ("replicas_equal", {}, clean_run(groups=(REPLICAS,)), P, "no difference"),
        (
            "replicas_equal",
            {},
            clean_run("[replicas] replicas differ since step 4: first in w, rank 1 differs\n", groups=(REPLICAS,)),
            F,
            "differ since step 4",
        ),
        ("replicas_equal", {}, clean_run("[replicas] no more comparisons: x\n", groups=(REPLICAS,)), S, "no more"),
        ("replicas_equal", {}, clean_run("step 3\n"), S, "nothing shows"),
        ("final_loss", {**LOSS, "max": 0.5}, clean_run("loss 0.9\nloss 0.4\n"), P, "0.4"),
        ("final_loss", {**LOSS, "max": 0.5}, clean_run("loss 0.4\nloss 0.9\n"), F, "0.9"),
        ("final_loss", {**LOSS, "max": 0.5}, clean_run("loss nan\n"), F, "nan"),
        ("final_loss", {**LOSS, "value": 0.4, "tolerance": 0.05}, clean_run("loss 0.44\n"), P, "0.4 +- 0.05"),
        ("final_loss", {**LOSS, "value": 0.4, "tolerance": 0.05}, clean_run("loss 0.46\n"), F, "0.46"),
        ("final_loss", {**LOSS, "max": 0.5}, clean_run("none\n"), S, "no line"),
    ],
)
def test_judged(name: str, settings: dict[str, Any], run: Run, verdict: Verdict, part: str) -> None:
    given, reason = said(name, settings, run)
    assert (given, part in reason) == (verdict, True), (given, reason)


def test_utilisation_of_processors() -> None:
    trace = trace_of([0.1])
    trace.cpu_share.update({0: 0.9, 1: 0.2})
    assert said("utilisation", {"min": 0.5}, clean_run(trace=trace)) == (
        F,
        "processors used by rank 1: 0.2, at least 0.5 wanted",
    )


def test_required_and_own() -> None:
    exit_code, no_finding, epochs = parse_expectations({"epochs": {"min": 1, "required": True}})
    assert (exit_code.name, exit_code.is_own, no_finding.name) == ("exit_code", True, "no_finding")
    check = epochs.judge(clean_run("words\n"))
    assert check.verdict is S
    assert check.has_failed
    assert not parse_expectations({"epochs": {"min": 1}})[-1].judge(clean_run("words\n")).has_failed


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"step_tme": {"max_s": 1}}, "did you mean step_time?"),
        ({"zzz": {}}, "there are no_finding, exit_code"),
        ({"step_time": {"max": 1}}, "has no 'max'; did you mean max_s?"),
        ({"step_time": {}}, "needs max_s or median_s"),
        ({"step_time": {"max_s": "1"}}, "is a number of at least 0, not '1'"),
        ({"step_time": {"max_s": True}}, "not True"),
        ({"step_time": 3}, "write [step_time]"),
        ({"steps": {"min": -1}}, "whole number"),
        ({"final_loss": {"max": 1}}, "needs pattern"),
        ({"final_loss": {"pattern": "(", "max": 1}}, "regular expression with one group"),
        ({"final_loss": {"pattern": "loss", "max": 1}}, "regular expression with one group"),
        ({"no_finding": {"allow": ["gpu-om"]}}, "list of causes"),
        ({"epochs": {"min": 1, "required": "yes"}}, "true or false"),
    ],
)
def test_nonsense_is_one_line(content: dict[str, Any], part: str) -> None:
    with pytest.raises(WrongUsage) as raised:
        parse_expectations(content)
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "expect.toml"
    with pytest.raises(UnreadableInput, match="No such file"):
        read_expectations(path)
    path.write_text("[step_time\n")
    with pytest.raises(UnreadableInput, match=r"expect\.toml"):
        read_expectations(path)
    path.write_text("[steps]\nmin = 3\n")
    assert [e.name for e in read_expectations(path)] == ["exit_code", "no_finding", "steps"]


def test_the_page_tells_of_every_expectation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "verify.md").read_text()
    missing = [f"[{name}]" for name in KNOWN if f"[{name}]" not in page]
    missing += [key for kinds in KNOWN.values() for key in kinds.settings if key not in page]
    assert not missing
