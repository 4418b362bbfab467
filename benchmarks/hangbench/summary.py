"""What the rows of the results say together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.hangbench.score import FALSE_ACCUSATION, HIT, NOT_RUN, share

Row = Mapping[str, Any]
PARTS = ("outcome", "cause", "ranks", "line")


def fault_rows(rows: Sequence[Row]) -> list[Row]:
    """The runs with a fault that happened."""
    return [row for row in rows if not row["is_healthy"] and row["score"]["result"] != NOT_RUN]


def healthy_rows(rows: Sequence[Row]) -> list[Row]:
    """The healthy runs."""
    return [row for row in rows if row["is_healthy"] and row["score"]["result"] != NOT_RUN]


def count(rows: Sequence[Row], result: str) -> int:
    """How many rows have a result."""
    return sum(row["score"]["result"] == result for row in rows)


def proven_times(rows: Sequence[Row]) -> list[float]:
    """Seconds from the onset, by the record, to the report, where the hang is proven and the fault is known in time."""
    return sorted(
        row["verdict_after_s"]
        for row in fault_rows(rows)
        if row["verdict_after_s"] is not None and (row["hang"] or {}).get("kind") == "proven"
    )


def told(rows: Sequence[Row]) -> str:
    """The figures, for a terminal."""
    faults, healthy = fault_rows(rows), healthy_rows(rows)
    kinds = len({row["kind"] for row in faults})
    lines = [
        f"fault runs     {len(faults)} of {kinds} kinds",
        f"strict         {share(count(faults, HIT), len(faults))}",
    ]
    lines += [f"  {part:12} {share(sum(row['score'][part] for row in faults), len(faults))}" for part in PARTS]
    lines += [
        f"accused        {share(count(faults, FALSE_ACCUSATION), len(faults))} of an innocent rank or a wrong cause",
        f"healthy runs   {len(healthy)}, accused {share(count(healthy, FALSE_ACCUSATION), len(healthy))}",
    ]
    times = proven_times(rows)
    if times:
        lines.append(
            f"proven hangs   n={len(times)}, report after median {statistics.median(times):.1f} s, worst {times[-1]:.1f} s"
        )
    missed = [row for row in rows if row["score"]["result"] != HIT]
    lines += [f"  {row['name']:40} {row['score']['result']}: {row['said']['title'][:90]}" for row in missed]
    return "\n".join(lines)
