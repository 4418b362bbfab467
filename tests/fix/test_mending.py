"""Diffs from findings: what they add, that they apply with `git apply` and `patch`, that the rest stays, and where there is none."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fix.programs import LEFT_ALONE, MENDED, Wrong
from unhang.fix import Mended, mend, with_diff
from unhang.fix.program import NoDiff
from unhang.model import Diagnosis, Inventory, Job, Outcome


def mended(wrong: Wrong, folder: Path, text: str = "") -> Mended:
    file = folder / "train.py"
    file.write_bytes((text or wrong.text).encode())
    (folder / ".git").mkdir(exist_ok=True)
    return mend(wrong.finding(str(file)), "gloo")


def added(diff: str) -> str:
    lines = [line[1:] for line in diff.splitlines(keepends=True) if line.startswith("+") and not line.startswith("+++")]
    return "".join(lines)


@pytest.mark.parametrize("name", MENDED)
def test_a_fault_is_mended(name: str, tmp_path: Path) -> None:
    wrong = MENDED[name]
    found = mended(wrong, tmp_path)
    assert found.diff.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert added(found.diff).strip("\n").endswith(wrong.mended.strip("\n")) or wrong.mended in added(found.diff), (
        found.diff
    )
    ast.parse(found.after)
    kept = [line for line in wrong.text.splitlines() if f"-{line}" not in found.diff.splitlines()]
    after = found.after.decode().splitlines()
    assert [line for line in kept if line not in after] == []


@pytest.mark.parametrize("name", MENDED)
@pytest.mark.parametrize("command", [["git", "apply"], ["patch", "-s", "-p1"]], ids=["git", "patch"])
def test_it_applies(name: str, command: list[str], tmp_path: Path) -> None:
    found = mended(MENDED[name], tmp_path)
    (tmp_path / ".git").rmdir()
    subprocess.run(command, input=found.diff, text=True, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "train.py").read_bytes() == found.after


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_not_sure_is_left_alone_and_the_reason_said(name: str, tmp_path: Path) -> None:
    wrong = LEFT_ALONE[name]
    with pytest.raises(NoDiff, match=wrong.mended):
        mended(wrong, tmp_path)


def test_a_mended_file_needs_no_further_mending(tmp_path: Path) -> None:
    wrong = MENDED["parameters that take no part"]
    once = mended(wrong, tmp_path)
    with pytest.raises(NoDiff, match="already"):
        mended(wrong, tmp_path, once.after.decode())


def test_line_ends_and_letters_stay(tmp_path: Path) -> None:
    wrong = MENDED["a decision by data"]
    text = ("# é Ω\n" + wrong.text).replace("\n", "\r\n")
    shifted = replace(wrong, source=wrong.source)
    file = tmp_path / "train.py"
    file.write_bytes(text.encode())
    finding = shifted.finding(str(file))
    assert finding.location is not None
    assert finding.condition is not None
    finding = replace(
        finding,
        location=replace(finding.location, line=finding.location.line + 1),
        condition=replace(finding.condition, line=finding.condition.line + 1),
    )
    after = mend(finding, "gloo").after
    assert after.count(b"\r\n") == after.count(b"\n")
    assert after.startswith("# é Ω\r\n".encode())


def test_on_devices_the_helper_makes_its_tensor_there(tmp_path: Path) -> None:
    wrong = MENDED["a decision by data"]
    file = tmp_path / "train.py"
    file.write_text(wrong.text)
    assert 'device="cuda")' in mend(wrong.finding(str(file)), "nccl").diff


@pytest.mark.parametrize(
    "content", [b"", b"def (", b"\x00\xff", b"x = 1\n"], ids=["empty", "no program", "binary", "another"]
)
def test_a_file_that_is_another_gives_a_reason(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(content)
    with pytest.raises(NoDiff):
        mend(MENDED["a decision by data"].finding(str(file)), "gloo")


def test_the_report_shows_the_diff_first_and_not_of_a_file_that_was_changed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(MENDED["a decision by data"].text)
    finding = MENDED["a decision by data"].finding(str(file))
    job = Job(backend="gloo", started_ns=file.stat().st_mtime_ns + 1)
    diagnosis = Diagnosis(Outcome.HANG, job, None, (finding,), (), Inventory())
    assert with_diff(diagnosis).findings[0].fixes[0].patch.startswith("--- ")
    later = replace(diagnosis, job=replace(job, started_ns=1))
    assert with_diff(later) == later
