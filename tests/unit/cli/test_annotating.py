"""A verdict as remarks: `diagnose --format github|gitlab|sarif`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from unhang.cli.main import main
from unhang.diagnosis import Judged
from unhang.model import Case, Diagnosis, Finding, Inventory, Job, Location, Outcome, WaitsFor
from unhang.model.findings import Fix
from unhang.show import annotated


def judged(outcome: Outcome, *findings: Finding) -> Judged:
    return Judged(Case(), Diagnosis(outcome, Job(), None, findings, (), Inventory()), WaitsFor())


FOUND = Finding(
    "late", "code-divergence", "rank 1: 100% late, again", 0.9, (1,), "because\nit is", id="F1",
    location=Location("src/train.py", 3, "main"), fixes=(Fix("Does not help: waiting", "-"), Fix("Let all call", "run", patch="edit it")),
)  # fmt: skip
ECHO = replace(FOUND, id="F2", consequence_of="F1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("\n\n\n")
    return tmp_path


def test_github_shows_the_root_at_its_line(root: Path) -> None:
    assert annotated(judged(Outcome.HANG, FOUND, ECHO), "github", root).decode() == (
        "::error title=unhang (late),file=src/train.py,line=3::rank 1: 100%25 late, again%0Abecause%0Ait is%0A"
        "Do: Let all call%0Aedit it\n"
    )


@pytest.mark.parametrize("file", ["/etc/hostname", "../else.py", "src/gone.py"])
def test_a_line_outside_the_repository_has_no_place(root: Path, file: str) -> None:
    (root.parent / "else.py").write_text("")
    found = replace(FOUND, location=Location(file, 1, "main"))
    assert b"file=" not in annotated(judged(Outcome.HANG, found), "github", root)
    assert json.loads(annotated(judged(Outcome.HANG, found), "sarif", root))["runs"][0]["results"][0]["locations"] == []
    assert json.loads(annotated(judged(Outcome.HANG, found), "gitlab", root))[0]["location"]["path"] == "README.md"


def test_sarif_names_rule_and_place(root: Path) -> None:
    run = json.loads(annotated(judged(Outcome.HANG, FOUND), "sarif", root))["runs"][0]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("late", "error")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "late"
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("src/train.py", 3)


@pytest.mark.parametrize("output_format", ["github", "gitlab", "sarif"])
def test_a_healthy_job_gets_no_remark(root: Path, output_format: str) -> None:
    for outcome in (Outcome.CLEAN, Outcome.UNKNOWN):
        text = annotated(judged(outcome), output_format, root).decode()
        empty = {"github": "", "gitlab": "[]\n"}.get(output_format)
        assert text == empty if empty is not None else json.loads(text)["runs"][0]["results"] == []


def test_a_failure_without_a_cause_is_said_without_a_place(root: Path) -> None:
    text = annotated(judged(Outcome.CRASH), "github", root).decode()
    assert text.startswith("::error title=unhang (unknown)::the job failed")
    assert "file=" not in text


@pytest.mark.parametrize("option", [["--follow"], ["--pid", "1"], ["--against", "x"]])
def test_what_makes_no_remarks_says_so(option: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [] if option[0] == "--pid" else [str(root)]
    assert main(["diagnose", *paths, *option, "--format", "github"]) == 2
    assert "--format github cannot be used with" in capsys.readouterr().err
