"""One voice: options named alike, errors worded alike, exit codes from one table, defaults from pyproject.toml."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from docs.make_commands import pages
from tests.slowness import slowness

from unhang.cli.main import COMMANDS, GENERAL, OF_COMMAND, cli, codes_of, main

ROOT = Path(__file__).parents[3]


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command, those below another one too."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {word}", child) for word, child in command.commands.items())


def options() -> Iterator[tuple[str, click.Option]]:
    return ((name, p) for name, command in commands() for p in command.params if isinstance(p, click.Option))


def test_options_are_named_alike() -> None:
    for name, option in options():
        if option.name == "output":
            assert option.opts == ["-o", "--output"], name
        if option.name and "format" in option.name:
            assert option.opts == ["--format"], name
        assert all(re.fullmatch(r"--[a-z]+(-[a-z]+)*|-[a-zA-Z]", opt) for opt in option.opts), (name, option.opts)
        assert option.help or option.hidden or name == "check", (name, option.opts)


def test_an_old_name_goes_on_working(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--output-format", "json", "retain_graph"]) == 0
    old = capsys.readouterr().out
    assert main(["explain", "--format", "json", "retain_graph"]) == 0
    assert capsys.readouterr().out == old
    assert old.startswith("{")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-Z"], "there is no option -Z (see 'unhang --help')"),
        (["env", "--outptu", "x"], "there is no option --outptu; did you mean --output? (see 'unhang env --help')"),
        (["env", "--format"], "--format needs a value"),
        (["env", "--format", "pdf"], "--format: 'pdf' is not one of 'text', 'json' (see 'unhang env --help')"),
        (["completion", "tcsh"], "SHELL: 'tcsh' is not one of 'bash', 'zsh', 'fish' (see 'unhang completion --help')"),
        (["completion"], "{bash|zsh|fish} is missing (see 'unhang completion --help')"),
        (["skill", "instal"], "there is no command 'instal'; did you mean install? (see 'unhang skill --help')"),
        (
            ["run", "--keep", "0", "--", "true"],
            "--keep: '0' is not all, failed, or a number from 1 (see 'unhang run --help')",
        ),
        (["diagnose", "/etc/hosst"], "/etc/hosst: No such file or directory; did you mean /etc/hosts?"),
    ],
)
def test_an_error_says_what_it_is_about_and_what_to_do(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"unhang: {line}\n")


def test_the_version_has_a_short_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-V"]) == main(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("unhang")


def test_the_table_of_exit_codes_knows_the_commands() -> None:
    assert set(OF_COMMAND) <= set(COMMANDS)
    assert all(2 in codes_of(name) for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["env", "ok.sh"], 0),
        (["env", "wrong.sh"], 1),
        (["env", "absent.sh"], 2),
        (["env", "empty.sh"], 3),
        (["lint", "good.py"], 0),
        (["lint", "bad.py"], 1),
        (["lint", "absent.py"], 2),
        (["diagnose", "absent"], 2),
        (["explain", "retain_graph"], 0),
        (["explain", "nonsenseword"], 2),
        (["reports"], 2),
        (["reports", "prune"], 0),
        (["completion", "fish"], 0),
        (["inject", "--list"], 0),
        (["inject", "--fault", "nonsense", "--", "true"], 2),
        (["demo", "--list"], 0),
        (["bundle", "absent"], 2),
        (["run", "--", "no-such-program"], 127),
        (["run", "--", "./ok.sh"], 126),
        (["reproduce", "absent"], 2),
        (["attach", "nothing-runs-under-this-name"], 3),
    ],
)
def test_commands_end_with_the_codes_of_the_table(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ok.sh").write_text("export NCCL_DEBUG=INFO\n")
    Path("wrong.sh").write_text("export NCCL_DEBUGG=INFO\n")
    Path("empty.sh").write_text("echo\n")
    Path("good.py").write_text("import torch.distributed as dist\ndist.barrier()\n")
    Path("bad.py").write_text("import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n")
    assert main(arguments) == code
    assert code in codes_of(arguments[0])
    assert not Path("unhang-reports").exists()  # a typo makes no folder


def test_the_help_of_every_command_tells_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "Exit code: " in text
        assert all(f"{code} {meaning}" in text for code, meaning in codes_of(name).items() if code != "job"), name


def test_pages_made_from_the_commands_are_current() -> None:
    assert {path: path.read_text() for path in pages()} == pages()
    assert all(
        f"| {code} | {meaning} |" in (ROOT / "docs/reference/exit-codes.md").read_text()
        for code, meaning in GENERAL.items()
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_what_the_shell_asks_for(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_UNHANG_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_a_shell_gets_commands_and_options() -> None:
    def completed(words: str, number: int) -> str:
        asked = {**os.environ, "_UNHANG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        command = [sys.executable, "-m", "unhang"]
        return subprocess.run(command, env=asked, capture_output=True, text=True, timeout=30 * slowness()).stdout

    assert "plain,diagnose" in completed("unhang dia", 1)
    assert "plain,--format" in completed("unhang diagnose --fo", 2)


class TestSettings:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")
        self.path = tmp_path / "pyproject.toml"

    def test_give_defaults_from_a_folder_above(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.path.write_text('[tool.unhang.explain]\nformat = "json"\n')
        assert main(["explain", "retain_graph"]) == 0
        assert capsys.readouterr().out.startswith("{")
        assert main(["explain", "--format", "text", "retain_graph"]) == 0
        assert not capsys.readouterr().out.startswith("{")

    def test_stand_behind_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from unhang.cli.main import defaults_of
        from unhang.cli.run import command

        self.path.write_text('[tool.unhang.run]\nstall-after = 30\nkeep = "failed"\nenv = ["A=b"]\nquiet = true\n')
        whole = {"stall_after": "30", "keep": "failed", "variables": ["A=b"], "quiet": True}
        assert defaults_of("run", command, {}, Path.cwd()) == whole
        del whole["stall_after"]
        assert defaults_of("run", command, {"UNHANG_STALL_AFTER": "9"}, Path.cwd()) == whole

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("[tool.unhang.env]\nformatt = 'json'", "[tool.unhang.env] has no key 'formatt'; did you mean format?"),
            ("[tool.unhang]\nformat = 'json'", "[tool.unhang] has no key 'format'"),
            ("[tool.unhang.diagnos]\nformat = 'json'", "[tool.unhang] has no key 'diagnos'; did you mean diagnose?"),
            ("[tool.unhang]\nenv = 1", "'env' of [tool.unhang] must be a table, [tool.unhang.env]"),
            ("[tool.unhang.env]\nformat = 'pdf'", "[tool.unhang.env] 'format': 'pdf' is not one of 'text', 'json'"),
            ("[tool.unhang.env]\nformat = ['json']", "[tool.unhang.env] 'format' must be a text or a number"),
            ("[tool.unhang.env]\nlive = 'yes'", "[tool.unhang.env] 'live' must be true or false"),
            (
                "[tool.unhang.env]\npid = [1]",
                "[tool.unhang.env] may not set 'pid': it can only be set on the command line",
            ),
            ("[tool.unhang.env\n", "Expected"),
        ],
    )
    def test_that_make_no_sense_are_one_line(self, text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.path.write_text(text)
        assert main(["env"]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert err.startswith(f"unhang: {self.path}: {line}")
        assert main(["env", "--help"]) == 0

    def test_of_others_are_not_ours(self) -> None:
        self.path.write_text("not TOML at all")
        assert main(["explain", "retain_graph"]) == 0

    def test_never_start_a_program(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.path.write_text('[tool.unhang.attach]\nvia = "touch owned; ssh {host}"\nnodes = "a"\n')
        assert main(["attach"]) == 2
        assert "may not set 'via'" in capsys.readouterr().err
