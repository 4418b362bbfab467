"""Ends what is left over from an earlier job and holds a port: one process at a time, by its number, after asking."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

from unhang.model import Reading
from unhang.probe.ports_holder import end_process


def end_orphans(readings: Iterable[Reading], ask: Callable[[str], bool], host: str = "") -> Iterator[str]:
    """Asks for each orphan that holds a port, ends it where the answer is yes, and says what became of it.

    Nothing but an orphan of this host is offered. A process that got the same number meanwhile is left alone.
    Blocks: as long as `ask`, and up to 10 s for each process.
    """
    here = host or platform.node()
    seen: set[tuple[str, int]] = set()
    for reading in readings:
        pid, started = reading.number("pid"), reading.number("started_ticks")
        if reading.kind != "network.port" or reading["is_orphan"] is not True or pid is None or started is None:
            continue
        if (reading.host, int(pid)) in seen:
            continue
        seen.add((reading.host, int(pid)))
        what = f"process {int(pid)} ({reading.text('command')}), which holds port {reading.subject}"
        if reading.host not in ("", here):
            yield f"{what}: it is on {reading.host}; run unhang check --end-orphans there"
        elif not ask(f"End {what}?"):
            yield f"{what}: left alone"
        else:
            yield f"{what}: {end_process(int(pid), int(started))}"
