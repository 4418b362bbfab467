"""Asks torch's flight recorders: how far each group is, and all recorded calls with their frames.

A torch for CUDA has two: ProcessGroupNCCL keeps its own, and all other backends share one. What is written is one dump. Each numbers its
groups and its calls for itself, so that the same number means two groups. And a group for several devices ("cpu:gloo,cuda:nccl") has one
name and two sequences of calls: those that are not NCCL's are given a name of their own.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from types import FrameType, ModuleType
from typing import Any

from . import recording
from .frames import _OWN, chain
from .recording import Recording, attempt, write_whole

_BINDINGS = "torch._C._distributed_c10d"


def _binding(*names: str) -> Callable[..., Any] | None:
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


# What they do not keep

# As many calls as the flight recorder keeps where nobody says otherwise.
_MOST_REDUCTIONS = 2048
_BY_OP = frozenset(("AllreduceOptions", "AllreduceCoalescedOptions", "ReduceScatterOptions"))
_BY_ROOT = frozenset(("BroadcastOptions", "GatherOptions", "ScatterOptions"))
_MOST_WORKS = 4096
# [begin, end (0 while it is made), group, operation, root, since when its Work is waited for (0: not yet)]: the calls that torch records in between are this one's.
Row = list[Any]


class Reductions:
    """What torch's flight recorder does not keep of a collective: by which operation it reduces, and its root. Written beside each dump."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=_MOST_REDUCTIONS)
        self._of_works: dict[int, Row] = {}

    def begin(self, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row | None:
        """Note a call of a method of a group, which takes its options last; None where there are none. Two microseconds."""
        options = kwargs.get("opts") or args[-1]
        kind = type(options).__name__
        op = root = -1
        if kind in _BY_OP:
            op = int(options.reduceOp.op)
        elif kind in _BY_ROOT:
            root = options.rootRank
        elif kind == "ReduceOptions":
            op, root = int(options.reduceOp.op), options.rootRank
        else:
            return None
        row = [time.time_ns(), 0, group.group_name, op, root, 0]
        self._rows.append(row)
        return row

    def end(self, row: Row | None) -> None:
        """The method has returned: what torch recorded of it, it has recorded."""
        if row is not None:
            row[1] = time.time_ns()

    def follow(self, row: Row | None, work: Any) -> None:
        """The call gave this Work; `waits` is told when somebody waits for it. Of one that is dropped the next at its address takes the place."""
        if row is not None and work is not None:
            if len(self._of_works) >= _MOST_WORKS:
                self._of_works.clear()
            self._of_works[id(work)] = row

    def waits(self, key: int) -> None:
        """Somebody waits for the Work with this id from now on."""
        row = self._of_works.pop(key, None)
        if row is not None:
            row[5] = time.time_ns()

    def forget(self, key: int) -> None:
        """The Work with this id is another one."""
        self._of_works.pop(key, None)

    def write(self, rec: Recording) -> None:
        """Write reductions.json, if there are any."""
        if rows := list(self._rows):
            write_whole(rec.path("reductions.json"), json.dumps(rows).encode())

    def forget_in_child(self) -> None:
        """After a fork: the calls were the parent's."""
        self._rows.clear()
        self._of_works.clear()


reductions = Reductions()


# The calls of gloo in which threads stand, for a torch whose flight recorder keeps none of gloo's (2.7 and older). Each is told whole or not at
# all: the operation and its tensor by the frame of torch that waits, the number by the group's own count.
_OPS = frozenset((
    "all_reduce", "broadcast", "barrier", "all_gather", "gather", "scatter", "reduce", "all_to_all", "all_to_all_single", "reduce_scatter",
    "all_gather_into_tensor", "reduce_scatter_tensor",
))  # fmt: skip
_WITH_ONE_TENSOR = ("all_reduce", "broadcast", "reduce")
# These move a gloo group's count, too, and not alike on all ranks.
_COUNTED_APART = (recording.SEND, recording.RECV, recording.ISEND, recording.IRECV, recording.MONITORED_BARRIER)
_DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int", "int16": "Short",
    "int8": "Char", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
_DEEPEST = 60
# Of each group the number last seen, and when first: a second look at the same wait gives the same bytes.
_since: dict[str, tuple[int, int]] = {}


def standing_calls(rec: Recording) -> dict[str, Any]:
    """What a dump of the flight recorder would hold of them; empty where a group's count says nothing, or two threads are in one group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    frames = [f for ident, f in sys._current_frames().items() if ident != threading.get_ident()]
    found: dict[str, Any] = {}
    for frame in frames if c10d is not None else ():
        at = _waiting_frame(frame)
        entry = attempt("calls of gloo", _entry, rec, c10d, at) if at is not None else None
        if entry is not None:
            if entry["process_group"][0] in found:
                return {}
            found[entry["process_group"][0]] = entry
    config = {
        str(e["pg_id"]): {"name": name, "desc": e["process_group"][1], "ranks": e.pop("ranks")}
        for name, e in found.items()
    }
    return {"version": "2.4", "pg_config": config, "pg_status": {}, "entries": list(found.values())} if found else {}


def _waiting_frame(frame: FrameType | None) -> FrameType | None:
    """The frame of a collective that has given its work to the group and waits for it; below it only the wait itself."""
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.endswith("torch/distributed/distributed_c10d.py"):
        return None
    is_given = frame.f_code.co_name in _OPS and frame.f_locals.get("work") is not None
    return frame if is_given else None


def _entry(rec: Recording, c10d: Any, at: FrameType) -> dict[str, Any] | None:
    """One entry; None where the group is not gloo's alone, or its count is moved by other calls."""
    given = at.f_locals
    group = given.get("group") or c10d.GroupMember.WORLD
    name = str(c10d._world.pg_names.get(group, ""))
    if not name or str(c10d._world.pg_map[group][0]) != "gloo" or any((k, name) in rec.counts for k in _COUNTED_APART):
        return None
    op, seq = at.f_code.co_name, int(group._get_sequence_number_for_group())
    if _since.get(name, (0, 0))[0] != seq:
        _since[name] = (seq, time.time_ns())
    tensor = given.get("tensor") if op in _WITH_ONE_TENSOR else None
    sizes = [list(tensor.shape)] if tensor is not None else []
    dtypes = [_DTYPES.get(str(tensor.dtype).rpartition(".")[2], str(tensor.dtype))] if tensor is not None else []
    return {
        "record_id": seq - 1,
        "pg_id": list(c10d._world.pg_names).index(group),
        "process_group": (name, str(getattr(group, "group_desc", "") or "")),
        "ranks": str(c10d.get_process_group_ranks(group)),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"gloo:{op}",
        "time_created_ns": _since[name][1],
        "input_sizes": sizes, "input_dtypes": dtypes, "output_sizes": sizes, "output_dtypes": dtypes,
        "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": [
            {"name": f.f_code.co_name, "filename": f.f_code.co_filename, "line": f.f_lineno} for f in chain(at, _DEEPEST)
        ],
    }  # fmt: skip
