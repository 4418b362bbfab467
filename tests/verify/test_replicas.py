"""`unhang verify --replicas`: a script that knows nothing of it has the copies of its model compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from unhang.cli.verify import command
from unhang.errors import WrongUsage

HERE = Path(__file__).parent
JOB = [sys.executable, str(HERE.parent / "ranks" / "forkrun.py"), "--eager", "2", str(HERE / "replicas_job.py")]


@pytest.mark.parametrize(
    ("arguments", "code", "verdict", "reason"),
    [
        ((), 0, "pass", "compared after every 10 optimizer steps, no difference told"),
        (("--drift",), 1, "fail", "replicas differ since step 20 (equal at step 10): first in weight"),
        (("--part",), 3, "skipped", "not compared: a model that DDP wraps over some of the ranks"),
    ],
)
def test_the_copies_are_compared(
    arguments: tuple[str, ...], code: int, verdict: str, reason: str, tmp_path: Path
) -> None:
    words = ["--replicas", "--report-dir", str(tmp_path / "reports"), "--format", "json", "--", *JOB, *arguments]
    result = CliRunner().invoke(command, words, standalone_mode=False)
    assert result.exception is None, result.output
    told = json.loads(result.stdout)
    (check,) = [check for check in told["checks"] if check["name"] == "replicas_equal"]
    assert check["verdict"] == verdict, told
    assert reason in check["reason"]
    assert result.return_value == code, told


def test_a_run_that_is_over_cannot_be_compared(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--replicas", "--after", str(tmp_path)], standalone_mode=False)
    assert isinstance(result.exception, WrongUsage)
