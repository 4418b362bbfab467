"""`unhang reproduce` as it is typed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from unhang.cli.reproduce import command
from unhang.errors import NothingToJudge, UnhangError, WrongUsage
from unhang.reproduce import NoTrials, Trials


def run(*arguments: str) -> int:
    code = command.main(list(arguments), standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_a_report_becomes_a_program_that_has_run_as_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(Path(__file__).with_name("test_reproduce_bundles.tar.xz")) as archive:
        members = [m for m in archive if m.name.startswith("uneven_batches/")]
        archive.extractall(tmp_path, members, filter="data")
    (tmp_path / "uneven_batches").rename(tmp_path / "bundle")
    (tmp_path / "report.json").write_text("{}")
    assert run(str(tmp_path / "report.json"), "--format", "json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["program"] == str(tmp_path / "repro.py")
    assert made["fails_the_same_way"] is True
    assert made["fix_passes"] is True
    assert made["stands"] == {"0": "all_reduce #10 of default_pg", "3": "barrier #10 of default_pg"}
    text = (tmp_path / "repro.py").read_text()
    assert "Written by `unhang reproduce`" in text
    assert "import unhang" not in text


def test_without_a_run_the_text_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(Path(__file__).with_name("test_reproduce_bundles.tar.xz")) as archive:
        members = [m for m in archive if m.name.startswith("sigkill/")]
        archive.extractall(tmp_path, members, filter="data")
    program = tmp_path / "x.py"
    assert run(str(tmp_path / "sigkill"), "--no-run", "--output", str(program)) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "WRITTEN, NOT RUN  rank 2 is killed by signal 9, ranks 0, 1, 3 wait in all_reduce #9 of default_pg"
    assert program.exists()


def test_a_file_of_the_user_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(Path(__file__).with_name("test_reproduce_bundles.tar.xz")) as archive:
        archive.extractall(tmp_path, [m for m in archive if m.name.startswith("sigkill/")], filter="data")
    monkeypatch.chdir(tmp_path)
    Path("repro.py").write_text("mine")
    with pytest.raises(WrongUsage, match="not written by unhang"):
        run("sigkill", "--no-run")
    assert Path("repro.py").read_text() == "mine"


def test_nothing_is_made_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(NothingToJudge):
        run(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name a report"),
        (["--all", "report"], "belong to --reduce"),
        (["--reduce"], "name the command"),
        (["--reduce", "--nproc", "0", "--", "x", "{nproc}"], "numbers of processes"),
        (["--reduce", "--nproc", "2", "--", "true"], "does not occur"),
        (["--reduce", "--", "true", "{nproc}"], "are missing"),
        (["--reduce", "--vary", "lr", "--", "true", "{lr}"], "NAME=VALUE"),
        (["--reduce", "--vary", "a=1", "--vary", "a=2", "--", "true", "{a}"], "twice"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], text: str) -> None:
    with pytest.raises(WrongUsage, match=text) as error:
        run(*arguments)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_without_torch_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NoTrials, match="no torch here") as error:
        Trials(tmp_path)
    assert isinstance(error.value, UnhangError)
    assert "--no-run" in error.value.help_text
