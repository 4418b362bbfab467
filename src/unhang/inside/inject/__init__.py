"""Faults on purpose: done to a job from outside, without a change to its script.

All by name: what is asked for (`NAME:rank=2,step=5`) is read and given to a job, made ready in its processes, and reported. It lives in
the job's processes as well, and needs nothing but the standard library; torch is used once the program has it.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..imports import act_after_import
from . import call_faults, process_faults, program
from .fault import Armed, Fault, Parameter, Value

VARIABLE = "UNHANG_INJECT"
_FAMILIES = (
    *(
        call_faults.OF_CALLS,
        call_faults.OF_ORDER,
        call_faults.OF_LOADERS,
        process_faults.OF_WORKERS,
        call_faults.OF_BATCHES,
    ),
    *(process_faults.OF_PROCESS, process_faults.OF_FILES, process_faults.OF_NETWORK, process_faults.OF_TIME),
    call_faults.OF_RESULTS,
)
FAULTS = {fault.name: fault for family in _FAMILIES for fault in family}
BOOTSTRAP = Path(__file__).parent / "bootstrap"
Wanted = Sequence[tuple[Fault, dict[str, Value]]]


class BadFault(ValueError):
    """A fault or a parameter that does not exist, or a value outside its limits."""


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _value(fault: Fault, parameter: Parameter, text: str) -> Value:
    if text in parameter.choices:
        return text
    near = _nearest(text, parameter.choices)
    bad = BadFault(f"{fault.name}: {parameter.name}={text}{near or f': must be {parameter.limits}'}")
    if parameter.least is None or parameter.most is None:
        if parameter.choices or not text:
            raise bad
        return text
    try:
        number = int(text) if parameter.is_whole else float(text)
    except ValueError:
        raise bad from None
    if not parameter.least <= number <= parameter.most:
        raise bad
    return number


def read_fault(text: str) -> tuple[Fault, dict[str, Value]]:
    """The fault and the values of all its parameters.

    Raises:
        BadFault: in one line, with the nearest name.
    """
    name, _, rest = text.partition(":")
    fault = FAULTS.get(name.strip().replace("-", "_"))
    if fault is None:
        raise BadFault(f"there is no fault {name.strip()!r}{_nearest(name.strip(), FAULTS)}")
    known = {p.name: p for p in fault.parameters}
    values: dict[str, Value] = {p.name: p.default for p in fault.parameters}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, given = (p.strip() for p in part.partition("="))
        if key not in known:
            hint = _nearest(key, known) or f"; it has {', '.join(known) or 'no parameters'}"
            raise BadFault(f"{fault.name} has no parameter {key!r}{hint}")
        if not equals:
            raise BadFault(f"{fault.name}: {key} needs a value: {key}=...")
        values[key] = _value(fault, known[key], given)
    return fault, values


def make_ready() -> None:
    """Reads the wanted faults from the environment and hangs them onto torch's modules as they are imported."""
    wanted = json.loads(os.environ[VARIABLE])
    files = (wanted["events"], *([wanted["record"]] if wanted["record"] else []))
    for index, entry in enumerate(wanted["faults"]):
        fault = FAULTS[entry["name"]]
        fault.make_ready(Armed(fault, entry["values"], wanted["seed"], index, files))
    os.register_at_fork(after_in_child=program.forked)
    act_after_import(
        {
            "torch.distributed": program.watch_distributed,
            "torch.optim.optimizer": program.watch_optimizers,
            "torch.utils.data.dataloader": program.watch_loaders,
            "torch.utils.data._utils.fetch": program.watch_fetchers,
            "torch.serialization": program.watch_files,
            "torch.nn.modules.module": program.watch_modules,
        }
    )


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
