"""Asks torch's flight recorders: how far each group is, and all recorded calls with their frames.

A torch for CUDA has two: ProcessGroupNCCL keeps its own, and all other backends share one. What is written is one dump.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import reductions
from .recording import Recording, attempt, write_whole
from .standing import standing_calls
from .two_recorders import groups_in, merged, statuses

_BINDINGS = "torch._C._distributed_c10d"


def _binding(*names: str) -> Callable[..., Any] | None:
    """The first of these functions that this torch has."""
    module = sys.modules.get(_BINDINGS)
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)


def recorders(suffix: str = "") -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """What dumps the recorder of NCCL, and that of all other backends."""
    return _binding(f"_dump_nccl_trace{suffix}"), _binding(f"_dump_fr_trace{suffix}")


def as_json(**options: bool) -> list[dict[str, Any]]:
    """What each recorder says, that of NCCL first; empty where this torch has none."""
    return [json.loads(ask(**options)) if ask is not None else {} for ask in recorders("_json")]


def poll_status(recording: Recording) -> None:
    """Copy `pg_status` into the page. Costs about 4 us in torch for each recorder, plus the parsing of one short JSON text."""
    if not any(recorders("_json")):
        recording.note("progress of the groups", "this torch has no _dump_fr_trace_json")
        return
    for pg_id, counts in statuses(*as_json(includeCollectives=False)).items():
        enqueued = int(counts.get("last_enqueued_collective", -1))
        completed = int(counts.get("last_completed_collective", -1))
        if not recording.page.set_status(pg_id, enqueued, completed):
            recording.note("progress of the groups", "only the first 128 groups fit into the page")


@contextmanager
def _without_inductor() -> Iterator[None]:
    """For the moment of a dump, an empty module in the place of torch._inductor.codecache, unless it is loaded.

    To name its frames the flight recorder imports that module, to ask for frames of compiled code: a second of CPU time under
    the GIL, in a process that compiled nothing.
    """
    name, parent = "torch._inductor.codecache", "torch._inductor"
    if name in sys.modules:
        yield
        return
    empty = ModuleType(name)
    empty.PyCodeCache = type("PyCodeCache", (), {"stack_frames_for_code": staticmethod(lambda *_: None)})  # type: ignore[attr-defined]
    added = {n: m for n, m in ((parent, ModuleType(parent)), (name, empty)) if n not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for key, module in added.items():
            if sys.modules.get(key) is module:
                del sys.modules[key]


def dump(recording: Recording, name: str) -> None:
    """Write all recorded calls with frames. Takes up to 75 ms with 2000 entries, during which the GIL is held."""
    attempt("reductions.json", reductions.write, recording)
    of_nccl, of_others = recorders()
    if of_nccl is None and of_others is None:
        recording.note(name, "this torch has no _dump_fr_trace")
        return
    with _without_inductor():
        found: list[bytes] = [ask() for ask in (of_nccl, of_others) if ask is not None]
    data = _in_one(recording, *found) if len(found) == 2 else found[0]
    if not _keeps_gloo():
        standing: bytes | None = attempt("calls of gloo", _with_standing, recording, data)
        data = standing or data
    if not write_whole(recording.path(name), data):
        recording.note(name, "the file could not be written")


def _in_one(recording: Recording, of_nccl: bytes, of_others: bytes) -> bytes:
    try:
        found = merged(pickle.loads(of_nccl), pickle.loads(of_others), groups_in(recording.path("groups.jsonl")))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        recording.note("calls of gloo", f"{type(error).__name__}: {error}")
        return of_nccl
    return pickle.dumps(found, 2)


def _keeps_gloo() -> bool:
    """Whether the flight recorder of this torch has the calls of gloo, too."""
    return _binding("_dump_fr_trace") is not None


def _with_standing(recording: Recording, data: bytes) -> bytes | None:
    """The calls of gloo in which threads stand, where torch's own dump has no entry."""
    if pickle.loads(data).get("entries"):
        return None
    found = standing_calls(recording)
    return pickle.dumps(found, 2) if found else None


def dump_at_end(recording: Recording) -> None:
    """Write flight_exit.pickle once groups existed: asking earlier would create the flight recorder."""
    if recording.page.words[9] and not recording.has_flight:
        recording.has_flight = True
        attempt("flight_exit.pickle", dump, recording, "flight_exit.pickle")
