"""`unhang demo`: plays a story: a training hangs, the verdict, the fix, the proof."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli.run import seconds
from unhang.cli.streams import need_torch

if TYPE_CHECKING:
    from unhang.verify.runs import HowToRun


@click.command("demo")
@click.argument("story", required=False)
@click.option("--list", "is_list", is_flag=True, help="List the stories.")
@click.option(
    "--faults", "plays_faults", is_flag=True, help="Run each fault of the story's table, of all stories without STORY."
)
@click.option(
    "--report-dir", type=click.Path(path_type=Path), help="Where the reports go [unhang-reports/STORY-<time>]."
)
@click.option("--run-limit", type=seconds, default=180.0, metavar="SECONDS", help="End a run after this [180].")
@click.option("--show-output", is_flag=True, help="Show what the trainings print, on stderr.")
def command(
    story: str | None, is_list: bool, plays_faults: bool, report_dir: Path | None, run_limit: float, show_output: bool
) -> int:
    """Play a story: a small training that goes wrong as a real one did.

    It shows the run that hangs, is diagnosed and ended, then the fix, the fixed run, and both side by side. Without STORY, the shortest one.

    With --faults, each verdict is compared with the truth; the exit code is 1 if one is wrong.
    """
    from unhang.verify.stories import DEFAULT, choose, find_stories, play

    stories, options = find_stories()
    if is_list:
        width = max(map(len, stories))
        for one in stories.values():
            click.echo(f"{one.name:{width}}  {one.title}")
        return 0
    chosen = choose(story or DEFAULT, stories)
    need_torch()
    name = "faults" if plays_faults else chosen.name
    folder = report_dir or Path("unhang-reports") / time.strftime(f"{name}-%Y%m%d-%H%M%S")
    how = _how(options, run_limit, show_output)
    if plays_faults:
        from unhang.verify.stories import play_faults

        return play_faults([chosen] if story else stories.values(), folder.absolute(), how, click.echo)
    return play(chosen, folder.absolute(), how, click.echo)


def _how(options: Sequence[str], run_limit: float, show_output: bool) -> HowToRun:
    """How to run, with the limits that stories.toml asks for."""
    from unhang.verify.runs import HowToRun

    values = dict(zip(options[::2], options[1::2], strict=False))
    limits = {name: float(values[name]) if name in values else None for name in ("--stall-after", "--abort-after")}
    return HowToRun(run_limit, limits["--stall-after"], limits["--abort-after"], shows_output=show_output)
