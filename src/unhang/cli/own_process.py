"""What a command needs of its own process: torch where ranks are started, a stopwatch."""

from __future__ import annotations

import os
import time

from unhang.errors import NoTorch

TIMINGS = "UNHANG_TIMINGS"


def need_torch() -> None:
    """Refuses before ranks are started that would each say so: torch belongs to the user, and may not be there.

    Raises:
        NoTorch: there is none.
    """
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise NoTorch("torch is not installed here")


class Timings:
    """Seconds of wall-clock and CPU time of each stage, as one line of JSON on stderr if UNHANG_TIMINGS asks for it."""

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

    def log(self) -> None:
        """Writes the line."""
        if os.environ.get(TIMINGS):
            import json

            import click

            click.echo(json.dumps({"timings_wall_cpu_s": self._stages}), err=True)
