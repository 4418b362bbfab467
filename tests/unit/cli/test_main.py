from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.slowness import slowness

from unhang.cli import main as cli_main
from unhang.cli.main import COMMANDS, main
from unhang.errors import NothingToJudge, UnhangError, UnreadableInput


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_help_does_not_load_what_is_heavy() -> None:
    code = "import sys; from unhang.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30 * slowness(), check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "rich", "msgspec", "unhang.model", "unhang.watch.supervise", "ctypes", "subprocess"}


def test_run_does_not_load_what_is_heavy() -> None:
    code = "import sys, unhang.cli.run, unhang.watch.supervise; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30 * slowness(), check=True
    )
    assert not set(done.stdout.split()) & {"numpy", "rich", "msgspec", "unhang.model"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["run"],
        ["run", "--nonsense", "--", "true"],
        ["run", "--stall-after", "abc", "--", "true"],
        ["run", "--stall-after", "nan", "--", "true"],
        ["run", "--abort-after", "-5", "--", "true"],
        ["run", "--on-hang", "kill", "--", "true"],
        ["diagnose", "--format", "pdf", __file__],
        ["diagnose", "/no/such/file"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("unhang: ")
    assert len(seen.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["diagnos", "x"], "unhang: there is no command 'diagnos'; did you mean diagnose? (see 'unhang --help')\n"),
        (["diagnose", "--outpt", "x"], "see 'unhang diagnose --help')\n"),
        (["reproduce"], "(see 'unhang reproduce --help')\n"),
        (["check", "--only", "nonsense"], "(see 'unhang check --help')\n"),
    ],
)
def test_wrong_usage_says_where_help_is(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith(line)


@pytest.mark.parametrize("arguments", [["demo"], ["check", "--ranks", "2"], ["check", "--scale", "2,4"]])
def test_without_torch_what_needs_it_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(arguments) == 2
    line = "unhang: torch is not installed here (install torch into the environment of unhang)\n"
    assert capsys.readouterr() == ("", line)


FAULTY = """if 1:
    import sys, click
    from unhang.cli import main as m
    @click.command()
    def faulty(): {}
    m.LazyGroup.get_command = lambda *_: faulty
    sys.argv = ["unhang", "env"]
    sys.exit(m.main())"""


def test_a_fault_of_ours_is_no_finding() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTY.format("[][1]")], capture_output=True, text=True, timeout=30 * slowness()
    )
    assert done.returncode == 2
    assert "IndexError" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("unhang: this is a bug in unhang, not a verdict (")


@pytest.mark.parametrize(
    ("act", "line"),
    [
        ("open('/no/such/file')", "unhang: /no/such/file: No such file or directory\n"),
        ("__import__('torch')", "unhang: torch is not installed here (install torch into the environment of unhang)\n"),
    ],
)
def test_what_is_missing_on_the_machine_is_one_line(act: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FAULTY.format(act)], capture_output=True, text=True, timeout=30, env=environment
    )
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            UnreadableInput("x.pickle is cut"),
            2,
            "unhang: x.pickle is cut (check that the file was copied completely, or leave it out)\n",
        ),
        (NothingToJudge("no dumps in x"), 3, None),
        (UnhangError("plain"), 2, "unhang: plain\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    error: BaseException,
    code: int,
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda *_: failing)
    assert main(["run"]) == code
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.strip().count("\n") == 0
    assert line is None or seen.err == line


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = """if 1:
        import sys, click
        from unhang.cli import main as m
        @click.command()
        def much(): sys.stdout.write("line\\n" * 1_000_000)
        m.LazyGroup.get_command = lambda *_: much
        sys.exit(m.main(["run"]))"""
    shell = '"$@" | head -1; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-c", code], capture_output=True, timeout=30 * slowness()
    )
    assert (done.stdout, done.stderr) == (b"line\n0\n", b"")
