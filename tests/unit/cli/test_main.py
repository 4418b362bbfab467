from __future__ import annotations

import subprocess
import sys

import click
import pytest

from unhang.cli import main as cli_main
from unhang.cli.main import COMMANDS, main
from unhang.errors import NothingToJudge, UnhangError, UnreadableInput


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_help_does_not_load_what_is_heavy() -> None:
    code = "import sys; from unhang.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "rich", "msgspec", "unhang.model", "unhang.watch.supervise", "ctypes", "subprocess"}


def test_run_does_not_load_what_is_heavy() -> None:
    code = "import sys, unhang.cli.run, unhang.watch.supervise; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
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
        ["diagnose"],
        ["diagnose", "--output-format", "pdf", __file__],
        ["diagnose", "/no/such/file"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "Error: " in seen.err or "Usage: " in seen.err


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
    done = subprocess.run(["bash", "-c", shell, "bash", sys.executable, "-c", code], capture_output=True, timeout=30)
    assert (done.stdout, done.stderr) == (b"line\n0\n", b"")
