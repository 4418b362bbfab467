"""`unhang verify` with real jobs, and what it says of command lines that make no sense."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tests import warm
from tests.slowness import slowness
from unhang.cli.verify import command
from unhang.errors import UnhangError, WrongUsage

HERE = Path(__file__).parent
JOB = warm.forkrun("--eager", 2, HERE / "verified_job.py")
LIMITS = ["--stall-after", "3", "--abort-after", "2"]
EXPECT = r"""
[final_loss]
pattern = 'loss ([\d.]+)'
max = 0.05
required = true
[epochs]
min = 3
[steps]
min = 30
[step_time]
median_s = 1.0
skip_first = 2
[no_timeout_text]
[utilisation]
min = 0.0
[replicas_equal]
"""


def verify(*arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if isinstance(result.exception, UnhangError):
        raise result.exception
    assert result.exception is None, result.output
    return result


def test_before_and_after_by_runs(tmp_path: Path) -> None:
    (tmp_path / "expect.toml").write_text(EXPECT)
    files = ["--expect", f"{tmp_path}/expect.toml", "--junit", f"{tmp_path}/junit.xml", "--format", "json"]
    before = ["--before-command", shlex.join([*JOB, "--broken"]), "--report-dir", str(tmp_path / "reports")]
    result = verify(*LIMITS, *files, *before, "--after", "--", *JOB)
    told = json.loads(result.stdout)
    checks = {check["name"]: check for check in told["checks"]}
    assert result.return_value == 0, told
    assert told["headline"].startswith("VERIFIED: ")
    first = told["before"]["runs"][0]
    assert (first["outcome"], first["exit_code"], first["steps"], first["culprit_ranks"]) == ("hang", 124, 29, [1])
    after = told["after"]["runs"][0]
    assert (after["outcome"], after["exit_code"], after["steps"], after["cause"]) == ("clean", 0, 30, None)
    assert checks.pop("replicas_equal")["verdict"] == "skipped"
    assert {name for name, check in checks.items() if check["verdict"] != "pass"} == set(), checks
    assert told["after"]["step_time_s"]["count"] >= 15
    assert 0.02 <= told["after"]["step_time_s"]["median"] < 1.0
    assert told["step_time_ratio"]["low"] <= told["step_time_ratio"]["value"] <= told["step_time_ratio"]["high"]
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("failures") == "0"
    for side in ("before-1", "after-1"):
        assert (tmp_path / "reports" / side / "report.json").exists()
    folders = [str(tmp_path / "reports" / side) for side in ("before-1", "after-1")]
    again = verify("--before", folders[0], "--after", folders[1] + "/bundle", "--format", "json")
    assert again.return_value == 0, again.output
    assert json.loads(again.stdout)["before"]["step_time_s"] == told["before"]["step_time_s"]
    swapped = verify("--before", folders[1], "--after", folders[0])
    assert swapped.return_value == 1
    assert "NOT VERIFIED: before_fails" in swapped.stdout


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    limits = ["--run-limit", str(6 * slowness()), "--report-dir", "reports"]
    result = warm.run([*warm.UNHANG, "verify", *limits, "--", *JOB, "--endless"], tmp_path, 50 * slowness())
    assert result.returncode == 1, result.stderr
    assert "it took too long, and was ended" in result.stdout
    assert "before" not in result.stdout


def test_a_command_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="there is no such program"):
        verify("--", "no-such-program-at-all")
    result = verify("--report-dir", str(tmp_path), "--", "false")
    assert result.return_value == 1, result.output
    assert "exit code 1, not 0" in result.stdout
    with pytest.raises(WrongUsage, match="holds an earlier run"):
        verify("--report-dir", str(tmp_path), "--", "false")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "there is no run after"),
        (("--before", "."), "there is no run after"),
        (("--before", "/nowhere", "--after", "."), "/nowhere does not exist"),
        (("--after", ".", "--", "true"), "not both"),
        (("--after", "--before", "x"), "a run is a path, not '--before'"),
        (("--before", ".", "--before-command", "true", "--after", "."), "cannot be used together"),
        (("--soak", "1", "--", "true"), "--soak and --faults go together"),
        (("--soak", "1", "--faults", "x@0", "--before", ".", "--", "true"), "--soak takes one command"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], part: str) -> None:
    with pytest.raises(WrongUsage) as raised:
        verify(*arguments)
    assert part in str(raised.value)


def test_the_page_tells_of_every_option() -> None:
    page = (HERE.parents[1] / "docs" / "commands" / "verify.md").read_text()
    assert not [name for parameter in command.params for name in parameter.opts if name not in page and "-" in name]
