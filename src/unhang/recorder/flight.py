"""Asks torch's flight recorder: how far each group is, and all recorded calls with their frames."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from .recording import Recording, attempt
from .writing import write_whole

_BINDINGS = "torch._C._distributed_c10d"


def _binding(*names: str) -> Callable[..., Any] | None:
    """The first of these functions that this torch has (newest name first)."""
    module = sys.modules.get(_BINDINGS)
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)


def poll_status(recording: Recording) -> None:
    """Copy `pg_status` into the page. Costs about 4 us in torch plus the parsing of one short JSON text."""
    ask = _binding("_dump_fr_trace_json", "_dump_nccl_trace_json")
    if ask is None:
        recording.note("progress of the groups", "this torch has no _dump_fr_trace_json")
        return
    status = json.loads(ask(includeCollectives=False)).get("pg_status") or {}
    for pg_id, counts in status.items():
        enqueued = int(counts.get("last_enqueued_collective", -1))
        completed = int(counts.get("last_completed_collective", -1))
        if not recording.page.set_status(int(pg_id), enqueued, completed):
            recording.note("progress of the groups", "only the first 128 groups fit into the page")


def dump(recording: Recording, name: str) -> None:
    """Write all recorded calls with frames. Takes up to 75 ms with 2000 entries, during which the GIL is held."""
    ask = _binding("_dump_fr_trace", "_dump_nccl_trace")
    if ask is None:
        recording.note(name, "this torch has no _dump_fr_trace")
        return
    if not write_whole(recording.path(name), ask()):
        recording.note(name, "the file could not be written")


def dump_at_end(recording: Recording) -> None:
    """Write flight_exit.pickle once groups existed: asking earlier would create the flight recorder."""
    if recording.page.words[9] and not recording.has_flight:
        recording.has_flight = True
        attempt("flight_exit.pickle", dump, recording, "flight_exit.pickle")
