"""`unhang demo`: plays a story: a training hangs, the verdict, the fix, the proof."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli.run import seconds
from unhang.errors import UnreadableInput

if TYPE_CHECKING:
    from unhang.verify.runs import HowToRun, Run
    from unhang.verify.stories import Story

_VERDICT_LINES = 45


class NoTorch(UnreadableInput):
    """The stories are real trainings, and torch is not there."""

    help_text = "install torch into the environment of unhang"


@click.command("demo")
@click.argument("story", default="demo")
@click.option("--list", "is_list", is_flag=True, help="List the stories.")
@click.option(
    "--report-dir", type=click.Path(path_type=Path), help="Where the reports go [unhang-reports/STORY-<time>]."
)
@click.option("--run-limit", type=seconds, default=180.0, metavar="SECONDS", help="End a run after this [180].")
@click.option("--show-output", is_flag=True, help="Show what the trainings print, on stderr.")
def command(story: str, is_list: bool, report_dir: Path | None, run_limit: float, show_output: bool) -> int:
    """Play a story: a small training that goes wrong as a real one did.

    It is run, its hang is named and ended; then the fix, the run with it, and both side by side. Without STORY the shortest one.

    Exit code: 0 the cause was named and the fix verified, 1 not, 3 could not judge.
    """
    from unhang.verify.stories import choose, find_stories

    stories, options = find_stories()
    if is_list:
        width = max(map(len, stories))
        for one in stories.values():
            click.echo(f"{one.name:{width}}  {one.title}")
        return 0
    chosen = choose(story, stories)
    if importlib.util.find_spec("torch") is None:
        raise NoTorch("there is no torch here")
    folder = report_dir or Path("unhang-reports") / time.strftime(f"{chosen.name}-%Y%m%d-%H%M%S")
    return play(chosen, folder.absolute(), _how(options, run_limit, show_output))


def _how(options: Sequence[str], run_limit: float, show_output: bool) -> HowToRun:
    """How to run, with the limits that stories.toml asks for."""
    from unhang.verify.runs import HowToRun

    values = dict(zip(options[::2], options[1::2], strict=False))
    limits = {name: float(values[name]) if name in values else None for name in ("--stall-after", "--abort-after")}
    return HowToRun(run_limit, limits["--stall-after"], limits["--abort-after"], shows_output=show_output)


def play(story: Story, folder: Path, how: HowToRun) -> int:
    """Plays it, with both reports in `folder`; returns the exit code.

    Blocks: as long as two short trainings, each up to the limit of `how`.
    """
    from unhang.verify.before_after import compare_sides, where
    from unhang.verify.expectations import default_expectations
    from unhang.verify.verify_report import verified_text

    _head(story.title)
    click.echo(f"What the team believed: {story.believed}")
    _head(f"$ unhang run -- {story.broken}")
    broken = _run(story, folder / "broken", how, is_fixed=False)
    _show_verdict(folder / "broken")
    named = broken.findings[0] if broken.findings else None
    is_right = broken.cause == story.cause and named is not None and set(named.culprit_ranks) == set(story.culprits)
    if not is_right:
        ranks = ", ".join(map(str, story.culprits)) or "none"
        got = f"{broken.cause}, {where(named)}" if named else "nothing"
        click.echo(f"\nunhang names {got}; the truth is {story.cause}, ranks {ranks}", err=True)
    _head("The fix")
    click.echo(f"{story.fix}\n\n{story.diff().rstrip()}")
    _head(f"$ unhang verify --before {_short(folder / 'broken')} --after -- {story.fixed}")
    fixed = _run(story, folder / "fixed", how, is_fixed=True)
    verified = compare_sides([broken], [fixed], default_expectations())
    click.echo(verified_text(verified))
    click.echo(f"The reports: {_short(folder / 'broken' / 'report.html')}, {_short(folder / 'fixed' / 'report.html')}")
    return verified.exit_code or (0 if is_right else 1)


def _run(story: Story, folder: Path, how: HowToRun, is_fixed: bool) -> Run:
    """Runs one version in a copy of its folder, which stays beside the report that names its lines."""
    from unhang.verify.runs import make_run
    from unhang.verify.stories import command_of

    program = folder / "program"
    story.copy(program, is_fixed)
    return make_run(command_of(story.fixed if is_fixed else story.broken), folder, replace(how, cwd=program))


def _show_verdict(folder: Path) -> None:
    try:
        lines = (folder / "report.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        click.echo("(there is no report)")
        return
    click.echo("\n".join(lines[:_VERDICT_LINES]))
    if len(lines) > _VERDICT_LINES:
        click.echo(f"... {len(lines) - _VERDICT_LINES} more lines in {_short(folder / 'report.txt')}")


def _head(text: str) -> None:
    click.echo(f"\n{text}\n{'-' * min(len(text), 100)}")


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
