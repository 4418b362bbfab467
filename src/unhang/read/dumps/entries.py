"""What one entry of a flight-recorder dump means: the one place for all ways to read it, and for the other meanings of torchcomms.

Entries come from NCCL and gloo, as pickle or JSON, from torch 2.4 to 2.13. What differs between the writers:

* gloo never moves `state` off "scheduled": with gloo `retired` means completed, with NCCL it means timed out.
* JSON writes 0 for an unknown time, where a pickle has None, and has no frames.
* Older versions lack fields: `collective_seq_id` was `seq_id`, a group was only a name or its `pg_id`.
* A call of NCCL that is completed and not retired was found to be so by the dump itself: its time is the dump's, and not kept.
* In a coalesced batch of NCCL only the last entry has a true state (`infer_states`), and of a batch of sends and receives it says
  `is_p2p: false`, with the number of the collective before it.

The writer is not trusted. Every value is checked for its type before it is used: values may share parts, so that a few
bytes can describe a tuple whose hash takes years.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, torch 2.13. Legend of shapes: N calls, by dump and order of issue.

What torchcomms means otherwise:

* `collective_seq_id` counts all calls of the recorder over all communicators, from 0; `p2p_seq_id` is 0, `is_p2p` is false.
* There are no events: a call that is done is `retired`, and stays "scheduled". `profiling_name` begins with "nccl:" on any backend.
* The ranks of a communicator are counted within it, written without brackets. What it says of its progress is empty.

Source: comms/torchcomms/hooks/fr/FlightRecorder.cpp, torchcomms 2026.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from unhang.model import CallState, Frame, ProcessGroup
from unhang.model.lazy_pattern import lazy_pattern
from unhang.numeric import np, npt
from unhang.read.files import INT64_MAX, encodable

MAX_FRAMES = 512
MAX_DIMENSIONS = 64
_P2P = lazy_pattern(r"(send|recv)\s+\d+\s*(?:->|<-)\s*(\d+|\?)$")
STATES = {"scheduled": CallState.SCHEDULED, "started": CallState.STARTED, "completed": CallState.COMPLETED}

Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"
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
    reduce_op: int = -1
    root_in_group: int = -1
    awaited_ns: int = 0
    pg_id: int = -1

    @property
    def batch(self) -> tuple[str, int, int]:
        """What the members of a coalesced batch share with its last entry."""
        return self.group, self.collective_seq, self.p2p_seq

    def shift(self, by_ns: int) -> None:
        """Brings its times from the clock of its node to another one."""
        for name in ("created_ns", "started_ns", "completed_ns", "awaited_ns"):
            setattr(self, name, (at := getattr(self, name)) and at + by_ns)


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
            raise BadEntry("an entry is not a dictionary")
        backend, op, named_p2p, peer = self._name(entry)
        group, desc = group_name(entry)
        is_p2p = named_p2p if entry.get("is_p2p") is None else entry["is_p2p"] is True
        seq = _whole(entry, "seq_id", 0) if "collective_seq_id" not in entry else _whole(entry, "collective_seq_id", 0)
        retired = entry.get("retired") is True
        state = _state(entry, backend, retired)
        is_of_the_dump = backend == "nccl" and state is CallState.COMPLETED and entry.get("retired") is False
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
            state=state,
            retired=retired,
            is_p2p=is_p2p,
            peer_in_group=peer,
            created_ns=_whole(entry, "time_created_ns", 0),
            started_ns=_whole(entry, "time_discovered_started_ns", 0),
            completed_ns=0 if is_of_the_dump else _whole(entry, "time_discovered_completed_ns", 0),
            timeout_ms=_whole(entry, "timeout_ms", -1),
            frames=self._stack(entry.get("frames")),
            thread=_thread(entry),
            pg_id=_number_of_group(entry),
        )

    def _name(self, entry: dict[Any, Any]) -> tuple[str, str, bool, int]:
        """`nccl:send 0->1` -> ("nccl", "send", True, 1); from any source, `recv 0<-?`, the peer is -1."""
        name = entry.get("profiling_name")
        if type(name) is not str or not name or len(name) > 1000:
            raise BadEntry("profiling_name is missing or no string")
        known = self._names.get(name)
        if known is None:
            backend, _, op = encodable(name).rpartition(":")
            match = _P2P.match(op)
            peer = int(match[2][:9]) if match and match[2] != "?" else -1
            known = (backend, match[1], True, peer) if match else (backend, op, op in ("send", "recv"), -1)
            self._names[name] = known
        return known

    def _stack(self, frames: object) -> CallStack | None:
        if frames is None:
            return None
        if type(frames) is not list:
            raise BadEntry("frames is not a list")
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
            raise BadEntry("a frame is not a dictionary")
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
            raise BadEntry("sizes are not a list")
        for dims in sizes:
            if (type(dims) is not list and type(dims) is not tuple) or len(dims) > MAX_DIMENSIONS:
                raise BadEntry("a size is not a list of dimensions")
            for d in dims:
                if type(d) is not int:
                    raise BadEntry("a size is not a number")
        made = self._sizes[id(sizes)] = tuple(map(tuple, sizes))
        return made

    def _dtype(self, dtypes: object) -> str:
        if not dtypes:
            return ""
        known = self._dtypes.get(id(dtypes))
        if known is not None:
            return known
        if type(dtypes) is not list and type(dtypes) is not tuple:
            raise BadEntry("dtypes are not a list")
        if not all(type(d) is str for d in dtypes):
            raise BadEntry("a dtype is not a string")
        made = self._dtypes[id(dtypes)] = encodable(",".join(dict.fromkeys(dtypes)))
        return made


def _whole(entry: dict[Any, Any], key: str, default: int) -> int:
    value = entry.get(key)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise BadEntry(f"{key} is not a number or out of range")
    return value


def group_name(entry: dict[Any, Any]) -> tuple[str, str]:
    """Name and description. Before they were recorded, groups differed in their numeric id alone."""
    value = entry.get("process_group")
    if type(value) is str:
        return encodable(value), ""
    if (type(value) is tuple or type(value) is list) and value and all(type(v) is str for v in value):
        return encodable(value[0]), encodable(value[1]) if len(value) > 1 else ""
    number = entry.get("pg_id")
    if value is None and type(number) is int and 0 <= number <= INT64_MAX:
        return str(number), ""
    raise BadEntry("process_group is missing or malformed")


def _number_of_group(entry: dict[Any, Any]) -> int:
    number = entry.get("pg_id")
    return number if type(number) is int and 0 <= number <= INT64_MAX else -1


def _thread(entry: dict[Any, Any]) -> str:
    name, number = entry.get("thread_name"), entry.get("thread_id")
    parts = (p for p in (name, number) if type(p) is str and p)
    return encodable(" ".join(parts))


def _state(entry: dict[Any, Any], backend: str, retired: bool) -> CallState:
    """With nccl a call that is retired and not completed timed out; with gloo `retired` means completed."""
    name = entry.get("state")
    if type(name) is not str:
        raise BadEntry("state is missing or no string")
    state = STATES.get(name, CallState.SCHEDULED)
    if retired and state is not CallState.COMPLETED:
        return CallState.FAILED if backend == "nccl" else CallState.COMPLETED
    return state


def infer_states(calls: Sequence[RecordedCall]) -> None:
    """Gives nccl calls the state that the dump only implies. Calls must be in the order of issue.

    The members of a coalesced batch share the sequence numbers of its last entry, which alone is tracked. A
    communicator runs its collectives and batches in order, so what came before a completed one is completed too, though calls
    captured in a CUDA graph are never tracked.
    """
    transfers = {c.batch for c in calls if c.is_p2p}
    batches: dict[tuple[str, int, int], CallState] = {}
    done: set[str] = set()
    for call in reversed(calls):
        if call.backend != "nccl":
            continue
        key = call.batch
        if "coalesced" in call.op:
            call.is_p2p = call.is_p2p or key in transfers
            batches[key] = call.state
        elif call.state == CallState.SCHEDULED and not call.retired:
            call.state = batches.get(key, call.state)
        if call.is_p2p and "coalesced" not in call.op:
            continue
        if call.state == CallState.COMPLETED:
            done.add(call.group)
        elif call.state == CallState.SCHEDULED and call.group in done and not call.retired:
            call.state = CallState.COMPLETED


def infer_state_columns(
    state_N: npt.NDArray[np.int8],
    group_N: Ints,
    tracked_N: Bools,
    is_p2p_N: Bools,
    is_batch_N: Bools,
    keys: tuple[Ints, Ints],
) -> None:
    """The same for the calls of many dumps at once; changes `state_N` in place.

    Args:
        state_N: states as written, those of retired calls already decided.
        group_N: numbers of (dump, group).
        tracked_N: calls of nccl.
        is_p2p_N: point-to-point calls.
        is_batch_N: the calls that stand for a coalesced batch.
        keys: both sequence numbers, which the members of a batch share.
    """
    waiting = np.flatnonzero(tracked_N & (state_N == CallState.SCHEDULED))
    if not len(waiting):
        return
    batches = np.flatnonzero(tracked_N & is_batch_N)
    if len(batches):
        _take_batch_states(state_N, waiting[~is_batch_N[waiting]], batches, (group_N, *keys))
    ordered = tracked_N & (~is_p2p_N | is_batch_N)
    done = np.flatnonzero(ordered & (state_N == CallState.COMPLETED))
    last = np.full(int(group_N.max()) + 1, -1)
    last[group_N[done]] = done
    waiting = waiting[ordered[waiting] & (state_N[waiting] == CallState.SCHEDULED)]
    state_N[waiting[waiting < last[group_N[waiting]]]] = CallState.COMPLETED


def of_transfers(batches: Bools, is_p2p_N: Bools, keys: tuple[Ints, ...]) -> Bools:
    """`[N]`: the entries of batches whose members, with the same group and numbers, are sends and receives."""
    found = np.zeros(len(batches), bool)
    rows = np.flatnonzero(batches | is_p2p_N)
    if batches.any() and is_p2p_N.any():
        _, of_key = np.unique(np.stack([key[rows].astype(np.int64) for key in keys]), axis=1, return_inverse=True)
        of_key = of_key.reshape(-1)
        found[rows] = batches[rows] & np.isin(of_key, of_key[is_p2p_N[rows]])
    return found


def _take_batch_states(state_N: npt.NDArray[np.int8], members: Ints, batches: Ints, keys: tuple[Ints, ...]) -> None:
    """Members take the state of the next batch of their group with their sequence numbers."""
    both = np.concatenate([members, batches])
    is_batch = np.arange(len(both)) >= len(members)
    order = np.lexsort((both, *(key[both] for key in keys)))
    both, is_batch = both[order], is_batch[order]
    same: Any = np.zeros(len(both), bool)
    same[1:] = np.logical_and.reduce([key[both[1:]] == key[both[:-1]] for key in keys])
    run = np.cumsum(~same)
    place = np.where(is_batch, np.arange(len(both)), len(both))
    following = np.minimum.accumulate(place[::-1])[::-1]
    following_ok = following < len(both)
    found = ~is_batch & following_ok & (run == run[np.minimum(following, len(both) - 1)])
    state_N[both[found]] = state_N[both[following[found]]]


_TRANSFERS = ("send", "recv")


def is_of_torchcomms(dump: Mapping[Any, Any]) -> bool:
    """Whether torchcomms wrote this dump: members without brackets, and no progress of any group."""
    config = dump.get("pg_config")
    if dump.get("pg_status") or not isinstance(config, dict) or not config:
        return False
    ranks = [group.get("ranks") if isinstance(group, dict) else None for group in config.values()]
    return all(isinstance(text, str) and text.replace(",", "").isdecimal() for text in ranks)


def with_meaning(calls: Sequence[RecordedCall], dump: Mapping[str, Any], rank: int) -> dict[str, ProcessGroup]:
    """Gives the calls, which are in the order of issue, the numbers and states of torch's recorder; returns the groups.

    Calls can be counted for each communicator where none before them is lost, or where there is one communicator. Only of the
    largest one the members are known: all ranks. Calls of others, and calls that cannot be counted, are compared with those of
    no other rank: they only tell that the rank waits.
    """
    sizes = {name: str(group["ranks"]).count(",") + 1 for name, group in dump["pg_config"].items()}
    of_all = [name for name, size in sizes.items() if size == max(sizes.values())]
    is_whole = all(call.record_id == i for i, call in enumerate(calls))
    counts: Counter[tuple[str, bool]] = Counter()
    for call in calls:
        is_comparable = of_all == [call.group] and (is_whole or len(sizes) == 1)
        if call.retired and call.state is not CallState.COMPLETED:
            call.state = CallState.COMPLETED
        call.is_p2p = call.op in _TRANSFERS
        counts[call.group, call.is_p2p] += 1
        if len(sizes) == 1 and not is_whole:
            call.collective_seq += 1
        else:
            call.collective_seq = counts[call.group, False]
        call.p2p_seq = counts[call.group, True]
        if not is_comparable:
            call.group = f"{call.group} of rank {rank}"
    return {
        name: ProcessGroup(name, "", tuple(range(size)), backend=str(dump["pg_config"][name].get("desc", "")))
        for name, size in sizes.items()
        if of_all == [name]
    }
