"""What is given to `unhang diagnose` and is no evidence: one line with its name, and exit code 2."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.slowness import slowness

from unhang import read
from unhang.cli import log
from unhang.cli.main import main
from unhang.cli.reports import NoReport, newest_report
from unhang.errors import UnreadableInput
from unhang.model import Diagnosis, Inventory, Job, Outcome
from unhang.read import SeveralRuns, check_one_job, given_paths, opened
from unhang.read.dumps import archive

LOG = "[rank0]: RuntimeError: out of luck\n"
TOLD = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNHANG_REPORT_DIR", raising=False)


def make(folder: Path, **job: object) -> Path:
    """A report folder with a bundle, and in it one line of output."""
    (folder / "bundle").mkdir(parents=True)
    (folder / "bundle" / "job.json").write_text(json.dumps({"started_ns": 10**18, **job}))
    (folder / "bundle" / "output.log").write_text(LOG)
    return folder


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["missing"], "missing: No such file or directory"),
        (["a.log", "missing"], "missing: No such file or directory"),
        (["a.log", "--against", "missing"], "missing: No such file or directory"),
        (["dumps/*"], "dumps/*: nothing matches"),
        (["**/*.nothing"], "**/*.nothing: nothing matches"),
        (["/dev/null"], "/dev/null: it is not a plain file; leave it out"),
        (["random"], "random: it is not a log, a dump or a report"),
        (["picture.png"], "picture.png: it is not a log, a dump or a report"),
        (["empty"], "empty: it is empty"),
        (
            ["comparison.json"],
            "comparison.json: unhang wrote it, and it is not evidence; give the report.json or the bundle of the run",
        ),
    ],
)
def test_what_is_no_evidence_is_one_line(arguments: list[str], line: str, tmp_path: Path, capsys: TOLD) -> None:
    (tmp_path / "a.log").write_text(LOG)
    (tmp_path / "empty").touch()
    (tmp_path / "random").write_bytes(random.Random(7).randbytes(5000))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + random.Random(8).randbytes(300))
    (tmp_path / "comparison.json").write_text('{\n  "schema": "unhang.comparison/1"\n}')
    assert main(["diagnose", *arguments]) == 2
    assert capsys.readouterr() == ("", f"unhang: {line}\n")


@pytest.mark.parametrize(
    "content",
    [
        LOG.encode("utf-16"),
        LOG.encode("utf-16-le"),
        ("Größe überschritten: " + LOG).encode("cp1252"),
        ("日本語のログ " + LOG).encode("shift_jis"),
        b"\x1b[32mok\x1b[0m\r 12%|#   |\r 13%|#   |\b\n" + LOG.encode(),
        b"\0" * 200 + LOG.encode() * 20,
        b"x",
    ],
    ids=["utf-16", "without mark", "cp1252", "shift_jis", "bars", "hole", "short"],
)
def test_a_log_of_any_kind_is_a_log(content: bytes, tmp_path: Path, capsys: TOLD) -> None:
    (tmp_path / "a.out").write_bytes(content)
    assert main(["diagnose", "a.out"]) in (1, 3)
    assert capsys.readouterr().err == ""


def test_bad_files_do_not_lose_the_others(tmp_path: Path, capsys: TOLD) -> None:
    (tmp_path / "a.log").write_text(LOG)
    (tmp_path / "random").write_bytes(random.Random(7).randbytes(5000))
    assert main(["diagnose", "a.log", "random", "--format", "json"]) == 1
    absent = json.loads(capsys.readouterr().out)["inventory"]["absent"]
    assert {"what": str(tmp_path / "random"), "reason": "it is not a log, a dump or a report"} in absent


def test_a_pattern_that_no_shell_expanded(tmp_path: Path) -> None:
    for name in ("b1.log", "b0.log", "b[2].log"):
        (tmp_path / name).write_text(LOG)
    assert given_paths(["b[01]*"]) == (Path("b0.log"), Path("b1.log"))
    assert given_paths(["b[2].log"]) == (Path("b[2].log"),)
    assert given_paths(["b"]) == (Path("b"),)
    assert given_paths(["-", "s3://a/b*"]) == ("-", "s3://a/b*")


def _without_root_rights() -> None:
    """Root reads everything, until it gives that up."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)


@pytest.mark.parametrize(("path", "code", "line"), [
    ("locked", 2, "unhang: locked: Permission denied\n"),
    ("locked/x", 2, "unhang: locked/x: Permission denied\n"),
    ("mixed", 1, ""),
])  # fmt: skip
def test_a_folder_that_may_not_be_read(path: str, code: int, line: str, tmp_path: Path) -> None:
    make(tmp_path / "mixed" / "run", exit_code=1)
    for folder in ("locked", "mixed/locked"):
        (tmp_path / folder).mkdir(mode=0)
    command = [sys.executable, "-m", "unhang", "diagnose", path]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=50 * slowness(), preexec_fn=_without_root_rights
    )
    assert (done.returncode, done.stderr) == (code, line)


def test_the_newest_report_here_or_where_reports_go(tmp_path: Path, capsys: TOLD) -> None:
    make(tmp_path / "unhang-reports" / "a" / "broken", started_ns=2 * 10**18)
    make(tmp_path / "unhang-reports" / "b", started_ns=10**18)
    make(tmp_path / "elsewhere")
    assert newest_report({}) == (Path("unhang-reports/a/broken"),)
    assert newest_report({"UNHANG_REPORT_DIR": "elsewhere"}) == (Path("elsewhere"),)
    assert "unhang: elsewhere is the newest report, of a run that began 2001-09-" in capsys.readouterr().err


def test_no_report_is_one_line(tmp_path: Path, capsys: TOLD) -> None:
    (tmp_path / "unhang-reports" / "running").mkdir(parents=True)
    assert main(["diagnose"]) == 2
    told = "there is no report in unhang-reports (name what to judge, or start the job with 'unhang run -- COMMAND')"
    assert capsys.readouterr() == ("", f"unhang: {told}\n")
    with pytest.raises(NoReport, match="no report in nowhere"):
        newest_report({"UNHANG_REPORT_DIR": "nowhere"})
    assert main(["diagnose", "--follow"]) == 2


def test_a_report_of_another_version_is_one_line(tmp_path: Path, capsys: TOLD) -> None:
    (tmp_path / "report.json").write_text('{"schema": "unhang.report/1", "outcome": "exploded"}')
    assert main(["diagnose", "report.json"]) == 2
    assert capsys.readouterr().err.startswith("unhang: report.json: it is damaged, or of another version of unhang (")


def pack(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    import io

    with tarfile.open(path, "w:gz") as packed:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            packed.addfile(link)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return path


JOB = {"run/bundle/job.json": b'{"exit_code": 1}', "run/bundle/output.log": LOG.encode()}


def test_nothing_leaves_the_folder_that_an_archive_is_unpacked_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    hostile = {"../outside": b"x", str(outside): b"x", "run/link/outside": b"x", "run/./../../outside": b"x", **JOB}
    packed = pack(tmp_path / "a.tgz", hostile, {"run/link": str(tmp_path)})
    with opened([packed]) as found:
        (folder,) = found
        assert isinstance(folder, Path)
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        assert files == [*sorted(JOB), "run/link/outside"]
        assert not any(p.is_symlink() for p in folder.rglob("*"))
    assert not outside.exists()
    assert not folder.exists()


def test_archives_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(tmp_path / "a.tgz", {**JOB, "run/bundle/ranks/r0-1/x": b"\1" * 3000})
    monkeypatch.setattr(read, "MAX_UNPACKED_BYTES", 2000)
    with pytest.raises(UnreadableInput, match=r"a\.tgz: it holds more than"), opened([packed]):
        pass
    monkeypatch.setattr(archive, "BOMB_BYTES", 1000)
    monkeypatch.setattr(archive, "BOMB_RATIO", 2)
    with pytest.raises(UnreadableInput, match="it is an attack"):
        read.unpack(packed, tmp_path / "out")


def test_an_archive_that_contradicts_itself_is_one_line(tmp_path: Path, capsys: TOLD) -> None:
    pack(tmp_path / "a.tgz", {**JOB, "run/bundle/output.log/x": b"x"})
    assert main(["diagnose", "a.tgz"]) == 2
    assert "a.tgz: run/bundle/output.log/x is a file and a folder in it" in capsys.readouterr().err


def test_a_cut_archive_is_told(tmp_path: Path, capsys: TOLD) -> None:
    whole = pack(tmp_path / "a.tgz", {**JOB, "run/bundle/ranks/r0-1/page.bin": random.Random(1).randbytes(90_000)})
    whole.write_bytes(whole.read_bytes()[:-50_000])
    assert main(["diagnose", "a.tgz"]) == 1
    seen = capsys.readouterr()
    assert seen.err.startswith("unhang: a.tgz: only its first ")
    assert seen.out.startswith("CRASH  ")


def test_names_of_copies_are_never_shown(tmp_path: Path, capsys: TOLD) -> None:
    pack(tmp_path / "a.tgz", {"run/report.json": b"{}"})
    assert main(["diagnose", "a.tgz"]) == 3
    assert capsys.readouterr().err.startswith("unhang: no evidence in a.tgz (report.json: it is not a log")


def test_a_verdict_that_was_saved_beside_dumps_is_not_taken_for_them(tmp_path: Path, capsys: TOLD) -> None:
    (tmp_path / "dumps" / "node0").mkdir(parents=True)
    (tmp_path / "dumps" / "node0" / "a.log").write_text(LOG)
    for _ in range(2):
        saved = ["--format", "json", "--output", "dumps/node0/report.json"]
        assert main(["diagnose", "dumps", *saved]) == 1
    assert main(["diagnose", "dumps"]) == 1
    seen = capsys.readouterr()
    assert "rank 0 raised RuntimeError: out of luck" in seen.out.splitlines()[0]
    assert seen.err == ""


def test_a_hang_without_a_cause_is_not_nothing_wrong() -> None:
    def code(outcome: Outcome) -> int:
        return Diagnosis(outcome, Job(), None, (), (), Inventory()).exit_code

    codes = {
        outcome: 0 if outcome in (Outcome.CLEAN, Outcome.MOVES) else 1
        for outcome in (Outcome.CLEAN, Outcome.MOVES, Outcome.HANG, Outcome.STALLED, Outcome.CRASH)
    }
    assert {o: code(o) for o in codes} == codes
    assert {code(o) for o in Outcome if o not in codes} == {3}


def test_runs_that_are_named_together(tmp_path: Path, capsys: TOLD) -> None:
    runs = [make(tmp_path / name, started_ns=at, ended_ns=at + 5) for name, at in (("a", 10**18), ("b", 2 * 10**18))]
    check_one_job(runs, log)
    assert "do not look like nodes of one job" in capsys.readouterr().err
    check_one_job(runs[:1])
    assert capsys.readouterr().err == ""
    with pytest.raises(SeveralRuns, match="holds 2 runs"):
        check_one_job([tmp_path, Path(os.devnull)])
