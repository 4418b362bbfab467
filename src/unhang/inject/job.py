"""The job around the faults: its environment, and what became of each fault."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .fault import Fault, Value

BOOTSTRAP = Path(__file__).parent / "bootstrap"
Wanted = Sequence[tuple[Fault, dict[str, Value]]]


def environment_with(
    wanted: Wanted, seed: int, events: Path, record: Path | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """The job's environment, with the faults in it."""
    order = {
        "faults": [{"name": fault.name, "values": values} for fault, values in wanted],
        "seed": seed,
        "events": str(events),
        "record": str(record) if record else None,
    }
    path = os.pathsep.join(part for part in (str(BOOTSTRAP), environ.get("PYTHONPATH", "")) if part)
    return {**environ, "PYTHONPATH": path, "UNHANG_INJECT": json.dumps(order)}


def read_events(events: Path) -> list[dict[str, Any]]:
    """What the processes of the job wrote. A line cut short by the end of its process is left out."""
    found = []
    for line in events.read_text(errors="replace").splitlines() if events.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def why_not(fault: Fault, values: Mapping[str, Value], met: Iterable[Mapping[str, Any]]) -> str:
    """Why a fault did not happen."""
    seen = list(met)
    if not seen:
        return f"the program has no {fault.needs}"
    rank, ranks = values.get("rank"), sorted({e["rank"] for e in seen if e["rank"] is not None})
    if not ranks:
        return "nothing tells the processes which rank they are"
    if isinstance(rank, int) and rank not in ranks:
        world_size = max(e["world_size"] for e in seen)
        if rank >= world_size:
            return f"there is no rank {rank} (world size {world_size})"
        return f"rank {rank} did not come there, only {', '.join(map(str, ranks[:16]))}"
    when = next((f"{k} {values[k]}" for k in ("call", "batch", "step") if values.get(k) is not None), "its turn")
    return f"{when} was never reached"


def never_happened(wanted: Wanted, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each fault that did not happen."""
    lines = []
    for index, (fault, values) in enumerate(wanted):
        mine = [e for e in events if e["index"] == index]
        if not any(e["event"] == "happened" for e in mine):
            lines.append(f"fault {fault.name} never happened: {why_not(fault, values, mine)}")
    return lines
