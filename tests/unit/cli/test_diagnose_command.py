from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unhang import cli as streams
from unhang import show
from unhang.cli.main import main
from unhang.cli.run import diagnose_and_show
from unhang.diagnosis import Judged
from unhang.model import Case, Diagnosis, Finding, Inventory, Job, Outcome, WaitsFor


def judged(outcome: Outcome, *findings: Finding) -> Judged:
    return Judged(Case(), Diagnosis(outcome, Job(), None, findings, (), Inventory()), WaitsFor())


FOUND = Finding("late", "code-divergence", "rank 1 is late", 0.9, (1,), "because it is")
CLEAN, UNKNOWN, HANG = judged(Outcome.CLEAN), judged(Outcome.UNKNOWN), judged(Outcome.HANG, FOUND)


@pytest.fixture(autouse=True)
def rendered_simply(monkeypatch: pytest.MonkeyPatch) -> None:
    def render(it: Judged, output_format: str, color: bool = False, is_file: bool = False) -> bytes:
        return f"{output_format} of {it.diagnosis.outcome}{' in colour' * color}\n".encode()

    monkeypatch.setattr("unhang.show.render", render)


def use(monkeypatch: pytest.MonkeyPatch, result: Judged) -> None:
    monkeypatch.setattr("unhang.diagnosis.judge_paths", lambda *_, **__: result)


@pytest.mark.parametrize(("result", "code"), [(CLEAN, 0), (HANG, 1), (UNKNOWN, 3)])
def test_the_exit_code_is_the_verdict(
    result: Judged, code: int, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    use(monkeypatch, result)
    assert main(["diagnose", __file__]) == code
    assert capfdbinary.readouterr() == (f"text of {result.diagnosis.outcome}\n".encode(), b"")


@pytest.mark.parametrize("output_format", ["text", "json", "html"])
def test_the_output_can_go_to_a_file(
    output_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, HANG)
    target = tmp_path / "out"
    assert main(["diagnose", __file__, __file__, "--format", output_format, "--output", str(target)]) == 1
    assert target.read_text() == f"{output_format} of hang\n"
    assert capfd.readouterr() == ("", "")


def test_an_output_that_cannot_be_written_is_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, HANG)
    target = tmp_path / "missing" / "out"
    assert main(["diagnose", __file__, "--output", str(target)]) == 2
    assert capfd.readouterr() == ("", f"unhang: {target}: No such file or directory\n")


def test_a_hang_shows_the_verdict_and_leaves_three_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, HANG)
    diagnose_and_show(tmp_path / "bundle", tmp_path, is_quiet=True)
    expected = f"\ntext of hang\nunhang: report in {tmp_path}/report.html\n"
    assert capfd.readouterr() == ("", expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json", "report.txt"]


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_clean_job_gets_at_most_one_line(
    is_quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, CLEAN)
    diagnose_and_show(tmp_path / "bundle", tmp_path, is_quiet=is_quiet)
    assert capfd.readouterr() == ("", "" if is_quiet else f"unhang: clean; report in {tmp_path}\n")
    assert (tmp_path / "report.html").exists()


def test_a_report_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, CLEAN)
    diagnose_and_show(tmp_path / "bundle", tmp_path / "missing")
    err = capfd.readouterr().err
    assert "unhang: the report is not complete: " in err
    assert err.count("\n") == 2


@pytest.mark.parametrize(
    ("environment", "expected"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals(environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_terminal(_: Any) -> bool:
        return True

    monkeypatch.setattr(streams.os, "isatty", is_terminal)
    monkeypatch.setattr(streams.os, "environ", environment)
    assert streams.wants_color(1) is expected


def test_json_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert json.loads(show.render(HANG, "json"))["outcome"] == "hang"
