"""`unhang.diagnose`: whatever lies at the paths, without the command line and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import unhang
from tests.slowness import slowness
from unhang.errors import NotEvidence, NothingToJudge, UnhangError, WrongUsage
from unhang.model import Outcome

LOG = "[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: out of luck\n"
JOB = {"exit_code": 1, "started_ns": 10**18, "ended_ns": 10**18 + 5}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text(LOG)
    return path


def run_folder(folder: Path, **job: object) -> Path:
    (folder / "bundle").mkdir(parents=True)
    (folder / "bundle" / "job.json").write_text(json.dumps({**JOB, **job}))
    (folder / "bundle" / "output.log").write_text(LOG)
    return folder


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "unhang-reports" / "20260101-120000")
    example = (unhang.diagnose.__doc__ or "").partition("Example:\n")[2].partition("    Args:")[0]
    exec("\n".join(line.removeprefix("        ") for line in example.splitlines()))  # the example of the docstring
    outcome, cause, *_ = capsys.readouterr().out.splitlines()
    assert outcome == f"{Outcome.CRASH} 1"
    assert cause.startswith("user-exception (1,) ")


def test_a_text_a_path_and_several(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("[rank0]: fine\n")
    several = [unhang.diagnose([log, str(other)]), unhang.diagnose(iter([other, log]))]
    found = [unhang.diagnose(log), unhang.diagnose(str(log)), unhang.diagnose(str(tmp_path / "j*.log")), *several]
    assert {d.findings[0].culprit_ranks for d in found} == {(1,)}
    assert found[0] == found[1] == found[2]


def test_a_report_folder_and_an_archive_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run")
    with tarfile.open(tmp_path / "run.tgz", "w:gz") as packed:
        packed.add(folder, "run")
    for path in (folder, folder / "bundle", tmp_path / "run.tgz"):
        diagnosis = unhang.diagnose(path)
        assert (diagnosis.outcome, diagnosis.job.exit_code) == (Outcome.CRASH, 1)
    assert capsys.readouterr() == ("", "")


def test_an_archive_of_logs(log: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as packed:
        packed.add(log, "attempt_0/1/stderr.log")
    packed_alone, alone = unhang.diagnose(tmp_path / "logs.tar.gz"), unhang.diagnose(log)
    assert packed_alone.findings[0].title == alone.findings[0].title
    with tarfile.open(tmp_path / "weights.tar", "w") as packed:
        packed.add(log, "model.bin")
    with pytest.raises(NotEvidence, match=r"weights.tar: model.bin not read, since no dump has such a name; unpack it"):
        unhang.diagnose(tmp_path / "weights.tar")


def test_what_cannot_be_judged_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        run_folder(
            tmp_path / "runs" / name, started_ns=10**18 + 10**12 * ord(name), ended_ns=10**18 + 10**12 * ord(name) + 5
        )
    wrong: list[tuple[str, type[UnhangError]]] = [
        ("missing", NotEvidence),
        ("empty", NothingToJudge),
        ("runs", WrongUsage),
    ]
    for name, error in wrong:
        with pytest.raises(error) as raised:
            unhang.diagnose(tmp_path / name)
        assert str(tmp_path / name) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_log_needs_neither_torch_nor_numpy_nor_the_command_line(log: Path) -> None:
    code = f"import sys, unhang; unhang.diagnose({str(log)!r}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50 * slowness(), check=True
    )
    assert not {"torch", "numpy", "click", "rich", "unhang.cli", "unhang.show"} & set(done.stdout.split())
