"""Asks torch's flight recorders: how far each group is, and all recorded calls with their frames.

A torch for CUDA has two: ProcessGroupNCCL keeps its own, and all other backends share one. What is written is one dump. Each numbers its
groups and its calls for itself, so that the same number means two groups. And a group for several devices ("cpu:gloo,cuda:nccl") has one
name and two sequences of calls: those that are not NCCL's are given a name of their own.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from types import ModuleType
from typing import Any

from . import unrecorded
from .recording import Recording, attempt, write_whole

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
    attempt("reductions.json", unrecorded.write, recording)
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
    found = unrecorded.standing_calls(recording)
    return pickle.dumps(found, 2) if found else None


def dump_at_end(recording: Recording) -> None:
    """Write flight_exit.pickle once groups existed: asking earlier would create the flight recorder."""
    if recording.page.words[9] and not recording.has_flight:
        recording.has_flight = True
        attempt("flight_exit.pickle", dump, recording, "flight_exit.pickle")


APART = 1 << 16  # the numbers of the others' groups begin here, where NCCL has groups, too
_OF_ONE_BACKEND = ("nccl", "gloo", "")
Dump = dict[str, Any]


def groups_in(path: str) -> dict[str, dict[str, Any]]:
    """The lines of groups.jsonl by the name of the group."""
    try:
        with open(path, encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
    except (OSError, ValueError):
        return {}
    return {str(group.get("pg_name", "")): group for group in found if isinstance(group, dict)}


def statuses(of_nccl: Dump, of_others: Dump) -> dict[int, dict[str, Any]]:
    """`pg_status` of both, by number."""
    first = of_nccl.get("pg_status") or {}
    found = {int(number): counts for number, counts in first.items()}
    found.update({int(n) + APART * bool(first): counts for n, counts in (of_others.get("pg_status") or {}).items()})
    return found


def merged(of_nccl: Dump, of_others: Dump, groups: Mapping[str, Mapping[str, Any]]) -> Dump:
    """Both in one, in the order in which the calls were made. `groups`: what is known of them by name: their backend and ranks.

    A group that two backends serve is called `NAME@gloo` in what the others recorded, on each rank, whatever it has called so far.
    """
    several = {name for name, group in groups.items() if group.get("backend") not in _OF_ONE_BACKEND}
    others = _renamed(of_others, several | (_names(of_nccl) & _names(of_others)), groups)
    if not of_nccl.get("entries") and not of_nccl.get("pg_status"):
        return others
    entries = [*(of_nccl.get("entries") or ())]
    entries += [{**e, "pg_id": int(e.get("pg_id", 0)) + APART} for e in others.get("entries") or ()]
    first = sum(min((int(e.get("record_id", 0)) for e in d.get("entries") or ()), default=0) for d in (of_nccl, others))
    entries.sort(key=itemgetter("time_created_ns"))
    return {
        **others,
        **of_nccl,
        "pg_config": {**(others.get("pg_config") or {}), **(of_nccl.get("pg_config") or {})},
        "pg_status": {str(number): counts for number, counts in statuses(of_nccl, others).items()},
        "entries": [{**entry, "record_id": first + at} for at, entry in enumerate(entries)],
    }


def _names(dump: Dump) -> set[str]:
    return {str(entry["process_group"][0]) for entry in dump.get("entries") or ()}


def _renamed(dump: Dump, several: set[str], groups: Mapping[str, Mapping[str, Any]]) -> Dump:
    here = several & _names(dump)
    if not here:
        return dump
    config = dict(dump.get("pg_config") or {})
    for name in here:
        known = {"ranks": str(groups[name]["ranks"])} if groups.get(name, {}).get("ranks") else {}
        if found := {**config.pop(name, {}), **known}:
            config[_apart(name)] = {**found, "name": _apart(name)}
    entries = [
        {**e, "process_group": (_apart(e["process_group"][0]), *e["process_group"][1:])}
        if e["process_group"][0] in here
        else e
        for e in dump["entries"]
    ]
    return {**dump, "pg_config": config, "entries": entries}


def _apart(name: str) -> str:
    return f"{name}@gloo"
