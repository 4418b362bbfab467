"""One entry of a flight-recorder dump. Its writer is not trusted.

Every value is checked for its type before it is used: values may share parts, so that a few bytes can describe a tuple
whose hash takes years.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unhang.model import CallState, Frame
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.fields import INT64_MAX, encodable

MAX_FRAMES = 512
MAX_DIMENSIONS = 64
_P2P = lazy_pattern(r"(send|recv)\s+\d+\s*(?:->|<-)\s*(\d+)$")
_STATES = {"scheduled": CallState.SCHEDULED, "started": CallState.STARTED, "completed": CallState.COMPLETED}

Sizes = tuple[tuple[int, ...], ...]


class BadEntry(Exception):
    """An entry that cannot be read; the others can."""


class CallStack(tuple[Frame, ...]):
    """A tuple of frames that computes its hash once: thousands of calls share one stack of twenty frames."""

    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


@dataclass(slots=True)
class RecordedCall:
    """An entry with its fields checked. `peer_in_group` is a rank within the group, -1 if there is none."""

    record_id: int
    group: str
    group_desc: str
    collective_seq: int
    p2p_seq: int
    op: str
    backend: str
    in_sizes: Sizes
    out_sizes: Sizes
    dtype: str
    state: CallState
    retired: bool
    is_p2p: bool
    peer_in_group: int
    created_ns: int
    started_ns: int
    completed_ns: int
    timeout_ms: int
    frames: CallStack | None
    thread: str


class EntryParser:
    """Parses the entries of one dump, which must stay alive meanwhile: parts that entries share are converted once."""

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, CallStack] = {}
        self._stacks_by_frames: dict[tuple[int, ...], CallStack] = {}
        self._sizes: dict[int, Sizes] = {}
        self._dtypes: dict[int, str] = {}
        self._names: dict[str, tuple[str, str, bool, int]] = {}

    def parse(self, entry: object, position: int) -> RecordedCall:
        """One entry; `position` stands in for a missing `record_id`.

        Raises:
            BadEntry: a field is missing or of the wrong type.
        """
        if not isinstance(entry, dict):
            raise BadEntry("an entry is no dictionary")
        backend, op, named_p2p, peer = self._name(entry)
        group, desc = _group(entry)
        is_p2p = named_p2p if entry.get("is_p2p") is None else entry["is_p2p"] is True
        seq = _whole(entry, "seq_id", 0) if "collective_seq_id" not in entry else _whole(entry, "collective_seq_id", 0)
        retired = entry.get("retired") is True
        completed_ns = _whole(entry, "time_discovered_completed_ns", 0)
        return RecordedCall(
            record_id=_whole(entry, "record_id", position),
            group=group,
            group_desc=desc,
            collective_seq=seq,
            p2p_seq=_whole(entry, "p2p_seq_id", seq),
            op=op,
            backend=backend,
            in_sizes=self._dims(entry.get("input_sizes")),
            out_sizes=self._dims(entry.get("output_sizes")),
            dtype=self._dtype(entry.get("input_dtypes")),
            state=_state(entry, backend, retired),
            retired=retired,
            is_p2p=is_p2p,
            peer_in_group=peer,
            created_ns=_whole(entry, "time_created_ns", 0),
            started_ns=_whole(entry, "time_discovered_started_ns", 0),
            completed_ns=completed_ns,
            timeout_ms=_whole(entry, "timeout_ms", -1),
            frames=self._stack(entry.get("frames")),
            thread=_thread(entry),
        )

    def _name(self, entry: dict[Any, Any]) -> tuple[str, str, bool, int]:
        """`nccl:send 0->1` -> ("nccl", "send", True, 1)."""
        name = entry.get("profiling_name")
        if type(name) is not str or not name or len(name) > 1000:
            raise BadEntry("profiling_name is missing or no string")
        known = self._names.get(name)
        if known is None:
            backend, _, op = encodable(name).rpartition(":")
            match = _P2P.match(op)
            known = (backend, match[1], True, int(match[2][:9])) if match else (backend, op, op in ("send", "recv"), -1)
            self._names[name] = known
        return known

    def _stack(self, frames: object) -> CallStack | None:
        if frames is None:
            return None
        if type(frames) is not list:
            raise BadEntry("frames is no list")
        stack = self._stacks.get(id(frames))
        if stack is None:
            shown = frames[:MAX_FRAMES]
            key = tuple(map(id, shown))
            stack = self._stacks_by_frames.get(key)
            if stack is None:
                stack = self._stacks_by_frames[key] = CallStack(map(self._frame, shown))
            self._stacks[id(frames)] = stack
        return stack or None

    def _frame(self, frame: object) -> Frame:
        known = self._frames.get(id(frame))
        if known is not None:
            return known
        if type(frame) is not dict:
            raise BadEntry("a frame is no dictionary")
        file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        if type(file) is not str or type(name) is not str:
            raise BadEntry("a frame without file or function")
        good_line = line if type(line) is int and 0 <= line <= INT64_MAX else 0
        made = self._frames[id(frame)] = Frame(encodable(file), good_line, encodable(name))
        return made

    def _dims(self, sizes: object) -> Sizes:
        if not sizes:
            return ()
        known = self._sizes.get(id(sizes))
        if known is not None:
            return known
        if type(sizes) is not list and type(sizes) is not tuple:
            raise BadEntry("sizes are no list")
        for dims in sizes:
            if (type(dims) is not list and type(dims) is not tuple) or len(dims) > MAX_DIMENSIONS:
                raise BadEntry("a size is no list of dimensions")
            for d in dims:
                if type(d) is not int:
                    raise BadEntry("a size is no number")
        made = self._sizes[id(sizes)] = tuple(map(tuple, sizes))
        return made

    def _dtype(self, dtypes: object) -> str:
        if not dtypes:
            return ""
        known = self._dtypes.get(id(dtypes))
        if known is not None:
            return known
        if type(dtypes) is not list and type(dtypes) is not tuple:
            raise BadEntry("dtypes are no list")
        if not all(type(d) is str for d in dtypes):
            raise BadEntry("a dtype is no string")
        made = self._dtypes[id(dtypes)] = encodable(",".join(dict.fromkeys(dtypes)))
        return made


def _whole(entry: dict[Any, Any], key: str, default: int) -> int:
    value = entry.get(key)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise BadEntry(f"{key} is no number or out of range")
    return value


def _group(entry: dict[Any, Any]) -> tuple[str, str]:
    """Name and description. Before they were recorded, only the numeric id told groups apart."""
    value = entry.get("process_group")
    if type(value) is str:
        return encodable(value), ""
    if (type(value) is tuple or type(value) is list) and value and all(type(v) is str for v in value):
        return encodable(value[0]), encodable(value[1]) if len(value) > 1 else ""
    number = entry.get("pg_id")
    if value is None and type(number) is int and 0 <= number <= INT64_MAX:
        return str(number), ""
    raise BadEntry("process_group is missing or malformed")


def _thread(entry: dict[Any, Any]) -> str:
    name, number = entry.get("thread_name"), entry.get("thread_id")
    parts = (p for p in (name, number) if type(p) is str and p)
    return encodable(" ".join(parts))


def _state(entry: dict[Any, Any], backend: str, retired: bool) -> CallState:
    """With nccl a call that is retired and not completed timed out; with gloo `retired` means completed."""
    name = entry.get("state")
    if type(name) is not str:
        raise BadEntry("state is missing or no string")
    state = _STATES.get(name, CallState.SCHEDULED)
    if retired and state is not CallState.COMPLETED:
        return CallState.FAILED if backend == "nccl" else CallState.COMPLETED
    return state
