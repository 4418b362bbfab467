"""Public incidents as a newer torch would have printed them: there the watchdog of each rank tells its counters, also where it does not wait."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import incident_accuracy
from tests.logs.test_work_beside_a_wait import heard

from unhang.model import Finding

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
    for path in sorted(incident_accuracy.FOLDER.glob("*.json")):
        incident = json.loads(path.read_text())
        newer, truth = with_counters(incident["log"]), incident["truth"]["cause"]
        if newer is None or not incident["scored"]:
            continue
        first = first_of(incident["log"])
        is_by_silence = first is not None and (first.rule, first.confidence) == ("rank0-alone", 0.6)  # of all others
        if first is not None and first.cause == truth and not is_by_silence:
            yield path.stem, truth, newer


def first_of(log: str) -> Finding | None:
    """The first finding."""
    return next(iter(incident_accuracy.diagnosed(log).findings), None)


def cause_of(log: str) -> str:
    """That of the first finding."""
    first = first_of(log)
    return first.cause if first is not None else ""


def test_counters_of_ranks_that_do_not_wait_cost_no_answer() -> None:
    logs = list(as_newer())
    assert len(logs) >= 30
    assert [(name, cause, said) for name, cause, log in logs if (said := cause_of(log)) != cause] == []
