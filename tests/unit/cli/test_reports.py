"""`unhang reports`, `--keep`, and the link to the newest report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests import warm
from tests.slowness import slowness

from unhang.cli.main import main
from unhang.watch.folders import Kept, kept_in, parse_keep, point_latest, remove, to_remove


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs that ended well, badly and well, in this order; and what is none of ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNHANG_REPORT_DIR", raising=False)
    folder = tmp_path / "unhang-reports"
    for number, code in ((1, 0), (2, 7), (3, 0)):
        bundle = folder / f"run-{number}" / "bundle"
        bundle.mkdir(parents=True)
        times = {"started_ns": number * 10**9, "ended_ns": number * 10**9 + 1}
        (bundle / "job.json").write_text(json.dumps({"command": ["true"], "exit_code": code, **times}))
        main(["diagnose", str(bundle), "--format", "json", "-o", str(bundle.parent / "report.json")])
        (bundle.parent / "report.html").write_text("<!doctype html>")
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("keep me")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_list_is_the_default_and_has_the_newest_first(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["reports"]) == 0
    plain = capsys.readouterr().out
    assert [line.split()[4 if "exit" in line else 3] for line in plain.splitlines()]
    assert [n for n in range(len(plain)) if plain.startswith("run-", n)]
    assert plain.index("run-3") < plain.index("run-2") < plain.index("run-1")
    assert main(["reports", "list", "--format", "json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["exit_code"] for run in runs] == [0, 7, 0]


def test_open_prints_the_page_of_the_newest(
    reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    capsys.readouterr()
    assert main(["reports", "open"]) == 0
    assert (capsys.readouterr().out, opened) == ("unhang-reports/run-3/report.html\n", [])
    monkeypatch.setenv("DISPLAY", ":0")
    for given in ("unhang-reports/run-1", "unhang-reports/run-1/report.json", "unhang-reports/run-1/report.html"):
        assert main(["reports", "open", given]) == 0
    assert opened == [(reports / "run-1" / "report.html").as_uri()] * 3
    assert main(["reports", "open", "unhang-reports/notes"]) == 2


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ("1", ["notes", "run-3"]),
        ("2", ["notes", "run-2", "run-3"]),
        ("failed", ["notes", "run-2"]),
        ("all", ["notes", "run-1", "run-2", "run-3"]),
    ],
)
def test_prune_keeps_what_is_asked_for_and_what_is_not_ours(
    keep: str, left: list[str], reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reports", "prune", "--keep", keep, "--dry-run"]) == 0
    assert len(names(reports)) == 4
    assert main(["reports", "prune", "--keep", keep]) == 0
    assert names(reports) == left


def test_a_run_that_goes_on_is_not_pruned(reports: Path) -> None:
    (reports / "running").mkdir()  # what `unhang run` makes before the job starts
    assert main(["reports", "prune", "--keep", "1"]) == 0
    assert names(reports) == ["notes", "run-3", "running"]


def test_a_report_that_cannot_be_read_counts_as_failed(reports: Path) -> None:
    (reports / "run-1" / "report.json").write_text("{")
    (reports / "run-3" / "report.json").unlink()
    assert [(kept.path.name, kept.is_clean) for kept in kept_in(reports)] == [
        ("run-3", False),
        ("run-2", False),
        ("run-1", False),
    ]


def test_latest_leads_to_the_newest_and_survives_pruning(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    point_latest(reports / "run-2")
    point_latest(reports / "run-3")
    assert os.readlink(reports / "latest") == "run-3"
    assert len(kept_in(reports)) == 3
    assert main(["diagnose", "unhang-reports/latest"]) == 0
    capsys.readouterr()
    both = ["unhang-reports/latest", "unhang-reports/run-3"]  # as a shell expands unhang-reports/*
    assert main(["diagnose", *both]) == 0
    assert capsys.readouterr().err == ""
    remove([reports / "run-3"])
    assert os.readlink(reports / "latest") == "run-2"
    assert main(["diagnose", "unhang-reports/latest"]) == 1


def test_a_file_of_that_name_stays(reports: Path) -> None:
    (reports / "latest").write_text("mine")
    point_latest(reports / "run-1")
    assert (reports / "latest").read_text() == "mine"
    assert names(reports) == ["latest", "notes", "run-1", "run-2", "run-3"]


def test_what_to_keep() -> None:
    kept = [Kept(Path("c"), 3, True), Kept(Path("b"), 2, False), Kept(Path("a"), 1, True)]
    assert to_remove(kept, "all") == []
    assert to_remove(kept, "failed") == [Path("c"), Path("a")]
    assert to_remove(kept, "2") == [Path("a")]
    for wrong in ("0", "-1", "", "some", "²"):
        with pytest.raises(ValueError, match="not all, failed"):
            parse_keep(wrong)


def test_run_keeps_what_it_was_asked_to(tmp_path: Path) -> None:
    folder = tmp_path / "unhang-reports"

    def run(*words: str) -> None:
        environ = {k: v for k, v in os.environ.items() if k != "UNHANG_REPORT_DIR"}
        warm.run([*warm.UNHANG, "run", *words], tmp_path, 60 * slowness(), environ)

    run("--keep", "failed", "--", "true")
    assert names(folder) == []
    run("--keep", "failed", "--", "false")
    run("--", "true")
    assert len(kept_in(folder)) == 2
    assert (folder / "latest").resolve() == kept_in(folder)[0].path
    run("--keep", "1", "--", "false")
    assert len(kept_in(folder)) == 1
    assert (folder / "latest").resolve() == kept_in(folder)[0].path
