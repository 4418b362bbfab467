"""`unhang fix`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.fix.programs import LEFT_ALONE, MENDED
from unhang.cli.main import main
from unhang.model import Diagnosis, Finding, Inventory, Job, Outcome
from unhang.show.verdict import to_json


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a program and the report of a run of it."""
    wrong = MENDED["a decision by data"]
    (tmp_path / "train.py").write_text(wrong.text)
    os.utime(tmp_path / "train.py", (1, 1))
    leave_report(tmp_path / "run", wrong.finding(str(tmp_path / "train.py")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leave_report(folder: Path, *findings: Finding) -> None:
    folder.mkdir()
    outcome = Outcome.HANG if findings else Outcome.CLEAN
    (folder / "report.json").write_bytes(
        to_json(Diagnosis(outcome, Job(backend="gloo"), None, findings, (), Inventory()))
    )


def test_it_shows_the_diff_and_changes_nothing(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (job / "train.py").read_bytes()
    assert main(["fix", "run"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert "All ranks decide together whether line" in err
    assert "unhang fix run --apply" in err
    assert (job / "train.py").read_bytes() == before
    assert subprocess.run(["git", "apply", "--check"], input=out, text=True, cwd=job, check=False).returncode == 0


@pytest.mark.parametrize("given", ["run", "run/", "run/report.json"])
def test_it_writes_the_change_and_tells_how_to_take_it_back(
    given: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (job / "train.py").read_bytes()
    others = {p: p.read_bytes() for p in job.rglob("*") if p.is_file() and p.name != "train.py"}
    assert main(["fix", given, "--apply"]) == 0
    err = capsys.readouterr().err
    assert b"if agreed(" in (job / "train.py").read_bytes()
    assert {p: p.read_bytes() for p in others} == others
    undo = next(line.partition("Undo it: ")[2] for line in err.splitlines() if "Undo it" in line)
    assert undo == f"patch -R -p1 -d {job if undo.split()[4] != '.' else '.'} < run/fix.patch"
    subprocess.run(undo, shell=True, check=True, cwd=job, capture_output=True)
    assert (job / "train.py").read_bytes() == before


def test_a_file_that_was_changed_after_the_run_is_left_alone(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = (job / "run" / "report.json").stat().st_mtime + 60
    os.utime(job / "train.py", (later, later))
    assert main(["fix", "run", "--apply"]) == 2
    assert "train.py was changed after the run: run the job again" in capsys.readouterr().err
    assert b"agreed" not in (job / "train.py").read_bytes()


def test_with_the_diff_in_the_report_it_is_the_text_that_counts(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fix", "run"])
    diff = capsys.readouterr().out
    report = json.loads((job / "run" / "report.json").read_text())
    report["findings"][0]["fixes"] = [{"title": "t", "patch": diff, "verify": "v"}]
    (job / "run" / "report.json").write_text(json.dumps(report, indent=2))
    later = (job / "run" / "report.json").stat().st_mtime + 60
    os.utime(job / "train.py", (later, later))  # a checkout of the same text
    assert main(["fix", "run"]) == 0
    (job / "train.py").write_text((job / "train.py").read_text().replace("loss.backward()", "(2 * loss).backward()"))
    assert main(["fix", "run"]) == 2


def test_a_file_of_another_machine_is_found_below_the_working_folder(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = (job / "run" / "report.json").read_text().replace(str(job), "/home/me/project")
    (job / "run" / "report.json").write_text(report)
    assert main(["fix", "run"]) == 0
    assert capsys.readouterr().out.startswith("--- a/train.py\n")


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_without_a_diff_the_reason_is_one_line(name: str, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = LEFT_ALONE[name]
    (job / "train.py").write_text(wrong.text)
    leave_report(job / "other", wrong.finding(str(job / "train.py")))
    assert main(["fix", "other"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("unhang: no diff can be made for 'rank 0 did another thing': ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not evidence"),
        (b"{", "not evidence"),
        (b"\x80\x02evil", "not evidence"),
        (b'{"schema": "unhang.report/1"}', "damaged"),
    ],
    ids=["empty", "cut", "binary", "of another version"],
)
def test_a_broken_report_is_one_line(content: bytes, says: str, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "run" / "report.json").write_bytes(content)
    assert main(["fix", "run/report.json"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_clean_run_needs_no_mending(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_report(job / "clean")
    assert main(["fix", "clean"]) == 0
    assert "nothing to fix" in capsys.readouterr().err


def test_a_mistyped_folder_is_named(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fix", "rnu"]) == 2
    assert "rnu: there is no such file or folder" in capsys.readouterr().err
    assert sorted(p.name for p in job.iterdir()) == ["run", "train.py"]
