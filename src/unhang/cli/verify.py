"""Proofs by runs: `unhang verify` shows that a change helps, or that a job does what is expected; `unhang demo` plays a story with both."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from unhang.cli import FILE, PATH, format_option, log, need_torch, output_option, seconds, seconds_option, write_out
from unhang.errors import WrongUsage

if TYPE_CHECKING:
    from unhang.verify import Check, HowToRun

FORMATS = ("text", "json", "junit")
_HERE = "--"


@click.command("verify", context_settings={"allow_interspersed_args": False})
@click.option("--before", multiple=True, metavar="PATH", help="A run that failed: its report folder or bundle.")
@click.option("--before-command", metavar="TEXT", help="Make the runs before the change with this command line.")
@click.option("--after", multiple=True, metavar="PATH", help="A run after the change; or '--after -- COMMAND...'.")
@click.option("--expect", type=PATH, metavar="FILE", help="What is expected, in TOML.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=1,
    show_default=True,
    help="How often to run a command.",
)
@click.option(
    "--until-significant",
    is_flag=True,
    help="Repeat the run after until it fails, or until it is unlikely (5 %) to have passed by luck; --repeat is the maximum.",
)
@click.option(
    "--replicas",
    "compares_replicas",
    is_flag=True,
    help="Also compare the models that DDP wraps on all ranks, every 10 optimizer steps; the script needs no change.",
)
@click.option("--soak", type=seconds, metavar="MINUTES", help="Run again and again, with faults in between.")
@click.option("--faults", metavar="SCHEDULE", help="For --soak: NAME[:rank=1,step=5]@MINUTE, ... or a TOML file.")
@click.option("--report-dir", type=PATH, help="Where the reports go [unhang-reports/verify-<time>].")
@seconds_option("--run-limit", help="End a run after this [3600].", default=3600.0)
@seconds_option("--stall-after", help="As for 'unhang run'.")
@seconds_option("--abort-after", help="As for 'unhang run'.")
@click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="The seed of the bootstrap interval.")
@click.option("--show-output", is_flag=True, help="Show what the job prints, on stderr.")
@click.option("--junit", type=FILE, metavar="FILE", help="Also write the checks as JUnit XML.")
@format_option(FORMATS)
@output_option()
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    before: tuple[str, ...],
    before_command: str | None,
    after: tuple[str, ...],
    expect: Path | None,
    repeat: int,
    until_significant: bool,
    compares_replicas: bool,
    soak: float | None,
    faults: str | None,
    report_dir: Path | None,
    run_limit: float,
    stall_after: float | None,
    abort_after: float | None,
    seed: int,
    show_output: bool,
    junit: Path | None,
    output_format: str,
    output: Path | None,
    command_line: tuple[str, ...],
) -> int:
    """Show that a change helps: the run before fails, with a cause; the run after does not, and gets as far.

    Without a run before: show that a job does what is expected. With --soak: that every fault is found.

    Example: unhang verify --before unhang-reports/RUN --after -- torchrun --nproc-per-node 4 train.py
    """
    from unhang.verify import HowToRun, with_replicas_compared

    after = tuple(path for path in after if path != _HERE)
    _check(before, before_command, after, command_line)
    if (soak is None) != (faults is None):
        raise WrongUsage("--soak and --faults go together")
    if until_significant and not ((before or before_command) and command_line):
        raise WrongUsage(
            "--until-significant needs a run before that failed, and a command: --before PATH --after -- COMMAND..."
        )
    env = None
    if compares_replicas:
        if not (command_line or before_command):
            raise WrongUsage("--replicas needs a command: a run that has ended can no longer be compared")
        env = with_replicas_compared(os.environ)
    how = HowToRun(run_limit, stall_after, abort_after, env, shows_output=show_output)
    folder = report_dir or Path("unhang-reports") / time.strftime("verify-%Y%m%d-%H%M%S")
    written = _Written(output_format, output, junit)
    if soak is not None and faults is not None:
        if before or before_command or after:
            raise WrongUsage("--soak takes one command, and no run before")
        return _soak(command_line, soak * 60, faults, folder, how, written)
    sides = _Side(before, shlex.split(before_command or "")), _Side(after, command_line)
    return _verify(*sides, expect, (repeat, until_significant), folder, how, seed, written)


def _check(
    before: tuple[str, ...], before_command: str | None, after: tuple[str, ...], command_line: tuple[str, ...]
) -> None:
    """Refuses sides that make no sense."""
    if wrong := [path for path in (*before, *after) if path.startswith("-")]:
        raise WrongUsage(f"a run is a path, not {wrong[0]!r}; a command comes after --")
    if after and command_line:
        raise WrongUsage("--after takes either paths or a command, not both")
    if not after and not command_line:
        raise WrongUsage("there is no run after: use --after PATH, or -- COMMAND...")
    if before and before_command:
        raise WrongUsage("--before and --before-command cannot be used together")


class _Side(NamedTuple):
    """What is before the change, or after it: runs that are there, or a command that makes them."""

    paths: Sequence[str]
    words: Sequence[str]


class _Written(NamedTuple):
    """What is written: in which format, where (stdout for None), and where as JUnit XML besides (nowhere for None)."""

    format: str
    output: Path | None
    junit: Path | None


def _verify(
    before: _Side,
    after: _Side,
    expect: Path | None,
    repeat: tuple[int, bool],
    folder: Path,
    how: HowToRun,
    seed: int,
    written: _Written,
) -> int:
    from unhang.verify import can_start, runs_of
    from unhang.verify.before_after import MOST_RUNS, compare_sides, enough, verified_json, verified_text
    from unhang.verify.expectations import Expectation, default_expectations, read_expectations

    expectations = read_expectations(expect) if expect else default_expectations()
    if how.env is not None and not any(e.name == "replicas_equal" for e in expectations):
        expectations = (*expectations, Expectation("replicas_equal", is_own=True))
    for side in (before, after):
        can_start(side.words)
    runs, until_significant = repeat
    failed = runs_of("before", *before, runs, folder, how, log)
    if until_significant:
        most = runs if runs > 1 else MOST_RUNS
        passing = runs_of("after", *after, most, folder, how, log, partial(enough, failed))
    else:
        passing = runs_of("after", *after, runs, folder, how, log)
    verified = compare_sides(failed, passing, expectations, seed)
    whole = verified_json(verified) if written.format == "json" else verified_text(verified)
    _write(whole, verified.checks, written)
    return verified.exit_code


def _soak(
    command_line: Sequence[str], soak_s: float, faults: str, folder: Path, how: HowToRun, written: _Written
) -> int:
    from unhang.verify import can_start, exit_code_of
    from unhang.verify.soak import known_faults, read_schedule, run_soak, soak_checks, soak_json, soak_text

    schedule = read_schedule(faults, known_faults(), soak_s)
    can_start(command_line)
    stretches = run_soak(command_line, schedule, soak_s, folder, how, log)
    checks = soak_checks(stretches)
    whole = soak_json(stretches, checks) if written.format == "json" else soak_text(stretches, checks)
    _write(whole, checks, written)
    return exit_code_of(checks)


def _write(whole: str, checks: Sequence[Check], written: _Written) -> None:
    from unhang.verify.before_after import checks_junit

    xml = checks_junit(checks)
    write_out((xml if written.format == "junit" else whole).encode(errors="replace"), written.output)
    if written.junit is not None:
        write_out(xml.encode(errors="replace"), written.junit)


# `unhang demo`: plays a story: a training hangs, the verdict, the fix, the proof.


@click.command("demo")
@click.argument("story", required=False)
@click.option("--list", "is_list", is_flag=True, help="List the stories.")
@click.option(
    "--faults", "plays_faults", is_flag=True, help="Run each fault of the story's table, of all stories without STORY."
)
@click.option("--report-dir", type=PATH, help="Where the reports go [unhang-reports/STORY-<time>].")
@seconds_option("--run-limit", help="End a run after this [180].", default=180.0)
@click.option("--show-output", is_flag=True, help="Show what the trainings print, on stderr.")
def demo(
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
    from unhang.verify import HowToRun

    values = dict(zip(options[::2], options[1::2], strict=False))
    limits = {name: float(values[name]) if name in values else None for name in ("--stall-after", "--abort-after")}
    return HowToRun(run_limit, limits["--stall-after"], limits["--abort-after"], shows_output=show_output)
