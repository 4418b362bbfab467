"""Public incidents as a newer torch would have printed them: there the watchdog of each rank tells its counters, also where it does not wait."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import incident_accuracy

from tests.incidents.test_incidents import found
from tests.logs.test_work_beside_a_wait import heard

_WAITED = re.compile(r"\[Rank (\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+)")
_WORLD = re.compile(r"world[_ ]?size[ =:]+(\d+)|nproc[_-]per[_-]node[ =](\d+)")
_MOST = 64


def with_counters(log: str) -> str | None:
    """The log with what the ranks that did not wait say of themselves; None where it is not told who they are, or what they did."""
    waits = {int(m[1]): int(m[2]) for m in _WAITED.finditer(log)}
    world = max([int(m[1] or m[2]) for m in _WORLD.finditer(log)] + [rank + 1 for rank in waits], default=0)
    missing = [r for r in range(world) if r not in waits]
    if len(set(waits.values())) != 1 or "dump signal" in log or not 0 < len(missing) <= len(waits) or world > _MOST:
        return None
    issued = next(iter(waits.values())) - 1
    lines = log.split("\n")
    last = max(n for n, line in enumerate(lines) if "Watchdog caught" in line) + 1
    return "\n".join([*lines[:last], *(x for r in missing for x in heard(r, issued)), *lines[last:]])


def as_newer() -> Iterator[tuple[str, str, str]]:
    """Of each incident that is judged right: its name, its cause, and the log."""
    for judged in found():
        if judged.is_scored and judged.cause == judged.truth:
            log = json.loads((incident_accuracy.FOLDER / f"{judged.name}.json").read_text())["log"]
            if (newer := with_counters(log)) is not None:
                yield judged.name, judged.cause, newer


def test_counters_of_ranks_that_do_not_wait_cost_no_answer() -> None:
    logs = list(as_newer())
    assert len(logs) >= 30
    said = [(name, cause, incident_accuracy.diagnosed(log).findings[:1]) for name, cause, log in logs]
    assert [(name, cause) for name, cause, first in said if [f.cause for f in first] != [cause]] == []
