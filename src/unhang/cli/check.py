"""`unhang check`: finds, before a job starts, what would stop it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unhang.cli import FILE, PATH, format_option, need_torch, output_option, wants_color, write_out
from unhang.errors import WrongUsage

if TYPE_CHECKING:
    from unhang.check.areas import CheckOptions
    from unhang.check.checking import Checked

FORMATS = ("text", "json", "html", "junit")
_CANNOT_JUDGE = 3
_END_LIMIT_S = 5.0


def _words(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _collectives(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    from unhang.check.collectives.suite import check_names

    words = _words(context, option, text)
    if text is not None:
        check_names(words)
    return words


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    words = _words(context, option, text)
    if not all(word.isascii() and word.isdecimal() and 0 < int(word) < 65536 for word in words):
        raise WrongUsage(f"{option.opts[0]} takes numbers with commas between them, not {text!r}")
    return tuple(map(int, words))


def _size(_: click.Context, option: click.Parameter, text: str) -> int:
    from unhang.check.checking import amount

    size = amount(text)
    if size is None or size < 4:
        raise WrongUsage(f"{option.opts[0]} takes a size such as 64K or 1G, not {text!r}")
    return size


def _plan(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, str]:
    from unhang.check.checking import parse_plan

    return parse_plan(text or "")


def _areas(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    from unhang.check.areas import AREAS

    words = _words(context, option, text)
    if unknown := [word for word in words if word not in AREAS]:
        raise WrongUsage(f"there is no area {unknown[0]!r}; there are {', '.join(AREAS)}")
    return words


@click.command("check")
@click.option("--only", "areas", metavar="AREAS", callback=_areas, help="Only these areas, separated by commas.")
@click.option(
    "--collectives",
    metavar="NAMES",
    callback=_collectives,
    help="Run collectives and verify the results: all, or names.",
)
@click.option("--links", is_flag=True, help="Find bad nodes and links with collectives on changing groups of ranks.")
@click.option(
    "--ranks",
    type=click.IntRange(2, 64),
    metavar="N",
    help="Start this many ranks on this machine and check with them.",
)
@click.option("--scale", metavar="SIZES", callback=_numbers, help="Like --ranks, for several numbers in turn: 2,4,8.")
@click.option(
    "--plan", metavar="SETUP", callback=_plan, help="Check a planned set-up: nodes=4,gpus=8,workers=6,shm=64M"
)
@click.option(
    "--workers", type=click.IntRange(min=0), metavar="N", help="Loader workers of each rank, for the forecasts."
)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=PATH,
    help="A folder of reports or checkpoints: space, speed, the same on all ranks.",
)
@click.option("--ports", metavar="PORTS", callback=_numbers, help="Ports that the job needs, besides MASTER_PORT.")
@click.option(
    "--end-orphans", is_flag=True, help="Offer to end processes of an earlier job that hold a port, one by one."
)
@click.option("--backend", type=click.Choice(("gloo", "nccl")), help="For collectives; default: nccl where it can run.")
@click.option("--reference", type=FILE, help="Compare latency and bandwidth with those of this file.")
@click.option("--save-reference", type=FILE, help="Write latency and bandwidth to this file.")
@click.option("--code", type=PATH, help="The training code: its revision must be the same on all ranks.")
@click.option(
    "--require", metavar="AREAS", callback=_areas, help="Areas that must not be skipped; else the exit code is 3."
)
@click.option(
    "--fail-on",
    type=click.Choice(("wrong", "doubtful", "note")),
    default="note",
    show_default=True,
    help="The lowest severity of a finding that makes the exit code 1.",
)
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Check again after this time, until Ctrl-C.",
)
@click.option(
    "--join-limit", "join_limit_s", type=click.FloatRange(1, 3600), metavar="SECONDS", default=30.0,
    help="How long to wait for the other ranks [30].",
)  # fmt: skip
@click.option(
    "--case-limit", "case_limit_s", type=click.FloatRange(1, 600), metavar="SECONDS", default=20.0,
    help="How long one collective may take [20].",
)  # fmt: skip
@click.option(
    "--largest",
    "largest_bytes",
    metavar="SIZE",
    default="4M",
    show_default=True,
    callback=_size,
    help="The largest buffer of a collective.",
)
@format_option(FORMATS)
@output_option()
def command(
    require: tuple[str, ...],
    ranks: int | None,
    scale: tuple[int, ...],
    every_s: float | None,
    end_orphans: bool,
    output_format: str,
    output: Path | None,
    **given: object,
) -> int:
    """Say what is wrong with this machine, or with all machines of a job, before the job starts on them.

    As one process it checks this machine. Under torchrun or srun (torchrun --nproc-per-node 4 -m unhang check) the ranks
    connect, compare their readings, and test the links between them; rank 0 prints the result. Nothing is changed without a
    flag.
    """
    from unhang.check.areas import CheckOptions
    from unhang.check.children import die_with_maker

    die_with_maker()
    if sizes := scale or ((ranks,) if ranks else ()):
        return _with_ranks_here(sizes)
    options = CheckOptions(**given)  # type: ignore[arg-type]
    last: Checked | None = None
    for turn in count():
        checked = _checked(options, turn)
        if checked.diagnosis is not None and (last is None or _shown(last) != _shown(checked)):
            write_out(rendered(checked, output_format, output is None and wants_color(1)), output)
            sys.stdout.flush()
        if checked.diagnosis is None and checked.exit_code == _CANNOT_JUDGE:
            click.echo("unhang: rank 0, which reports the result, has stopped answering", err=True)
        if end_orphans:
            _offer_to_end(checked)
        if every_s is None:
            return _code(checked, require)
        last = checked
        time.sleep(every_s)
    raise AssertionError("count() has no end")


def _shown(checked: Checked) -> tuple[tuple[str, str], ...]:
    """What is worth showing again when it changes."""
    return tuple((f.rule, f.title) for f in checked.diagnosis.findings) if checked.diagnosis else ()


def _checked(options: CheckOptions, turn: int) -> Checked:
    """One check, with its progress on stderr. With --watch the ranks meet anew in every turn."""
    from unhang.check.checking import check

    environ = dict(os.environ)
    if turn:
        environ["TORCHELASTIC_RESTART_COUNT"] = f"{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{turn}"
    with _progress() as on_progress:
        return check(options, environ, on_progress)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows what is going on: on a terminal in one line that is wiped out at the end, elsewhere a line each."""
    if os.environ.get("RANK", "0") != "0":
        yield lambda text: None
        return
    is_terminal = os.isatty(2)

    def show(text: str) -> None:
        click.echo(f"\r\x1b[K{text[:100]}" if is_terminal else f"unhang: {text}", err=True, nl=not is_terminal)

    try:
        yield show
    finally:
        if is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def rendered(checked: Checked, output_format: str, color: bool) -> bytes:
    """The result, which has a diagnosis, in one of FORMATS."""
    diagnosis, case = checked.diagnosis, checked.case
    assert diagnosis is not None
    if output_format == "json":
        from unhang.show.verdict import to_json

        return to_json(diagnosis)
    if output_format == "html":
        from unhang.analyze.situation import Situation
        from unhang.show.web_page import render_html

        return render_html(diagnosis, case, Situation(case).waits).encode(errors="replace")
    if output_format == "junit":
        from unhang.show.preflight import to_junit

        return to_junit(diagnosis, checked.seconds)
    from unhang.show.preflight import render_check

    return render_check(diagnosis, case, checked.seconds, color).encode(errors="replace")


def _code(checked: Checked, require: tuple[str, ...]) -> int:
    """The exit code; 3 where an area that must be judged was skipped."""
    from unhang.show.preflight import skipped_areas

    if checked.exit_code == 0 and checked.diagnosis and set(require) & set(skipped_areas(checked.diagnosis)):
        return _CANNOT_JUDGE
    return checked.exit_code


def _with_ranks_here(sizes: Sequence[int]) -> int:
    """Starts this command once per rank, for each size in turn. The worst exit code of all."""
    if "RANK" in os.environ:
        raise WrongUsage("--ranks and --scale start their own ranks; leave them out under torchrun or srun")
    need_torch()
    arguments = _without_options(sys.argv[1:], ("--ranks", "--scale"))
    codes = []
    for size in sizes:
        if len(sizes) > 1:
            click.echo(f"unhang: {size} ranks", err=True)
        codes.append(_run_ranks(size, [sys.executable, "-m", "unhang", *arguments]))
    return max(codes)


def _offer_to_end(checked: Checked) -> None:
    """Asks for each orphan of an earlier job whether to end it."""
    from unhang.check.network.ports import end_orphans

    for line in end_orphans(checked.case.readings, lambda text: click.confirm(text, err=True)):
        click.echo(f"unhang: {line}", err=True)


# Ranks on this machine.


def _without_options(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """A command line without these options and their values."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in names:
            skip = True
        elif not any(argument.startswith(f"{name}=") for name in names):
            kept.append(argument)
    return kept


def _run_ranks(size: int, command: Sequence[str]) -> int:
    """Starts `command` as so many ranks of one job on loopback, and waits for all. The exit code of rank 0.

    Only rank 0 writes to stdout. Blocks: as long as the command; each rank has limits of its own.
    """
    import socket
    import subprocess

    from unhang.check.children import for_child

    started: list[subprocess.Popen[bytes]] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    environ = {"OMP_NUM_THREADS": "1", **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    try:
        for rank in range(size):
            own = for_child({**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            started.append(subprocess.Popen(command, env=own, stdout=None if rank == 0 else subprocess.DEVNULL))
        codes = [process.wait() for process in started]
        return codes[0]
    finally:
        running = [process for process in started if process.poll() is None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
