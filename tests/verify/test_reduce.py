"""The table of set-ups: which combinations are run, in which order, and what each result says."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from unhang.cli.reproduce import command
from unhang.reproduce.reduce import Limits, _verdict, combinations, filled, options_of, reduce

PROGRAM = """
import sys, time
ranks, rate = int(sys.argv[1]), float(sys.argv[2])
if ranks > 1 and rate > 0.1:
    raise SystemExit(3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reports go into the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_the_smallest_come_first() -> None:
    options = options_of("4,1,2", ["lr=0.1,0.2"])
    assert options == {"nproc": ("1", "2", "4"), "lr": ("0.1", "0.2")}
    assert combinations(options) == [
        ("1", "0.1"),
        ("1", "0.2"),
        ("2", "0.1"),
        ("2", "0.2"),
        ("4", "0.1"),
        ("4", "0.2"),
    ]
    assert combinations({}) == [()]


def test_only_known_names_are_filled_in() -> None:
    assert filled(["-n{nproc}", '{"a": 1}', "{other}"], {"nproc": "2"}) == ["-n2", '{"a": 1}', "{other}"]
    assert filled(["{a}"], {"a": "{b}", "b": "1"}) == ["{b}"]


def test_the_first_failure_is_found_and_ends_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--reduce", "--nproc", "1,2", "--vary", "lr=0.1,0.2", "--"]
    code = command.main([*arguments, sys.executable, "program.py", "{nproc}", "{lr}"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert code == 1
    rows = [line.split() for line in out.splitlines()[:5]]
    assert rows == [
        ["nproc", "lr", "result"],
        ["1", "0.1", "passed"],
        ["1", "0.2", "passed"],
        ["2", "0.1", "passed"],
        ["2", "0.2", "crash", "exit", "code", "3"],
    ]
    assert "first failure: nproc=2, lr=0.2" in out
    assert err.count("unhang: ") == 4
    (reports,) = (folder / "unhang-reports").iterdir()
    assert (reports / "004" / "report.json").exists()


def test_all_goes_on_and_a_run_over_the_limit_is_ended(folder: Path) -> None:
    (folder / "program.py").write_text("import sys, time\nif sys.argv[1] == '1': time.sleep(50)\n")
    started = time.monotonic()
    told: list[str] = []
    command_line = [sys.executable, "program.py", "{n}"]
    table = reduce(command_line, options_of(None, ["n=1,2"]), Limits(8.0), is_all=True, log=told.append)
    assert [row.result for row in table.rows] == ["over the limit", "passed"]
    assert table.failed is table.rows[0]
    assert table.rows[0].exit_code is None
    assert time.monotonic() - started < 40
    assert len(told) == 2


@pytest.mark.parametrize(
    ("code", "findings", "expected"),
    [
        (0, [], ("passed", "")),
        (0, [{"cause": "straggler", "culprit_ranks": [2]}], ("passed", "")),
        (124, [{"cause": "uneven-inputs", "culprit_ranks": [3]}], ("hang", "uneven-inputs, rank 3")),
        (124, [], ("hang", "no cause established")),
        (1, [{"cause": "user-exception", "culprit_ranks": [0, 1]}], ("crash", "user-exception, ranks 0, 1")),
        (134, None, ("crash", "exit code 134")),
    ],
)
def test_a_result_tells_the_cause(folder: Path, code: int, findings: object, expected: tuple[str, str]) -> None:
    (folder / "report.json").write_text("broken" if findings is None else json.dumps({"findings": findings}))
    assert _verdict(folder, code, False, Limits(60)) == expected
