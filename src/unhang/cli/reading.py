"""How `unhang diagnose` comes to its evidence: what was given, which engine reads it, and what is told meanwhile."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

_THREADS = "OPENBLAS_NUM_THREADS"

if TYPE_CHECKING:
    from unhang.read.bundle import Evidence
    from unhang.read.dumps.engine import Engine
    from unhang.read.dumps.reader import DumpReader
    from unhang.read.dumps.shard import DumpFile

Given = Path | str
Reader = Callable[[Sequence["DumpFile"]], "DumpReader"]
STDIN = "-"
ENGINES = ("local", "ray")
TIMINGS = "UNHANG_TIMINGS"
_EVERY_S = 0.2
_SLOW_S = 1.0


def given_path(text: str) -> Given:
    """A path of this machine, or a URL for fsspec.

    Raises:
        click.BadParameter: there is no such file.
    """
    if "://" in text or text == STDIN:
        return text
    path = Path(text)
    if not path.exists() and not any(path.parent.glob(f"{path.name}*")):  # a prefix, as torch's own setting is one
        raise click.BadParameter(f"{text!r} does not exist")
    return path


@contextmanager
def stdin_as_file(paths: Sequence[Given]) -> Iterator[Sequence[Given]]:
    """The paths, with `-` replaced by a file that holds the standard input and is removed afterwards."""
    if STDIN not in paths:
        yield paths
        return
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
        copy = Path(folder) / "stdin"
        with copy.open("wb") as f:
            shutil.copyfileobj(sys.stdin.buffer, f)
        yield [copy if path == STDIN else path for path in paths]


def import_numpy() -> None:
    """Imports numpy without its threads: they cost more to start than everything else here, and nothing multiplies matrices."""
    if _THREADS not in os.environ:
        os.environ[_THREADS] = "1"
        import numpy  # noqa: F401

        del os.environ[_THREADS]


@contextmanager
def without_collector() -> Iterator[None]:
    """For work at whose end the process ends: what it makes is hardly ever in cycles, and is looked through in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()  # what is alive now stays: to look through all of it once more would take longer than the end
            gc.enable()


class Timings:
    """Seconds of wall-clock and CPU time since the last mark, printed as one line of JSON at the end if asked for."""

    def __init__(self) -> None:
        self._stages: dict[str, list[float]] = {}
        self._last = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = os.times()
        return time.monotonic(), times.user + times.system + times.children_user + times.children_system

    def mark(self, stage: str) -> None:
        """Ends a stage."""
        now = self._now()
        self._stages[stage] = [round(b - a, 4) for a, b in zip(self._last, now, strict=True)]
        self._last = now

    def tell(self) -> None:
        """Prints the stages on stderr."""
        if os.environ.get(TIMINGS):
            click.echo(json.dumps({"timings_wall_cpu_s": self._stages}), err=True)


class Progress:
    """One line on the terminal that is overwritten, from the second on that the work takes."""

    def __init__(self, what: str = "dumps", unit: int = 1) -> None:
        """`what` is counted in steps of `unit`."""
        self._began = self._shown = time.monotonic()
        self._is_shown = False
        self._what, self._unit = what, unit

    def __call__(self, done: int, total: int) -> None:
        """Shows how far it is, at most five times a second."""
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self._began < _SLOW_S or now - self._shown < _EVERY_S:
            return
        self._shown, self._is_shown = now, True
        text = f"{done // self._unit} of {total // self._unit} {self._what} read"
        click.echo(f"\r\x1b[Kunhang: {text}", nl=False, err=True)

    def clear(self) -> None:
        """Removes the line."""
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._is_shown = False


@contextmanager
def reading(engine: str, ray_address: str | None, use_cache: bool) -> Iterator[Reader]:
    """Makes the readers of dumps; closes what the engine holds."""
    progress = Progress()

    def reader(files: Sequence[DumpFile], runs: Engine | None = None) -> DumpReader:
        from unhang.read.dumps.reader import DumpReader

        return DumpReader(files, runs, progress, use_cache)

    try:
        if engine == "local":
            yield reader
        else:
            from unhang.read.dumps.engine_ray import RayEngine

            with RayEngine(ray_address) as ray:
                yield lambda files: reader(files, ray)
    finally:
        progress.clear()


def closer_look(evidence: Evidence) -> None:
    """Reads the few dumps whole on which the verdict hangs, if only the last calls of each were read."""
    if evidence.dumps is not None and not evidence.dumps.is_whole:
        from unhang.analyze.closer_look import ranks_that_matter
        from unhang.analyze.situation import Situation

        evidence.closer(ranks_that_matter(Situation(evidence.case)))
