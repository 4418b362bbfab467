"""What the content of a dump says of its rank, read as data by a walker that executes nothing and builds nothing large.

Only files whose names do not say enough are looked at, so that a folder of many thousands is listed, not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from unhang.errors import UnreadableInput
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.dumps.head import ranks_of
from unhang.read.files import decode_json

_MOST_STEPS = 200_000
_KEYS_OF_JSON = lazy_pattern(
    rb'"(pg_config|pg_status|entries|record_id|profiling_name|comm_lib_version|nccl_comm_state|collective_seq_id)"\s*:'
)
_STARTS_OF_PICKLES = (b"\x80", b"}", b"(d")
_NEXT_OBJECT = lazy_pattern(rb"\}\s*\n\{")
_MARKS_OF_P2P = (b"send ", b"recv ")
_P2P = lazy_pattern(r"(?:send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*\d{1,7}$")


def is_dump(head: bytes) -> bool:
    """Whether a file that begins like this is a flight-recorder dump. A log may be JSON too, with an object in each line."""
    start = head.lstrip()[:1]
    if start == b"{":
        return bool(_KEYS_OF_JSON.search(head)) and b'"traceEvents"' not in head and not _NEXT_OBJECT.search(head)
    keys = head[:256]
    return head.startswith(_STARTS_OF_PICKLES) and (b"pg_config" in head or (b"entries" in keys and b"version" in keys))


class Identity(NamedTuple):
    """Whose dump it is, as far as it says. `world`: ranks of the job, by the largest that it names."""

    rank: int | None = None
    world: int | None = None


def own_rank(data: bytes) -> int | None:
    """The rank that wrote a dump, from the groups it is in and its point-to-point calls; None if they do not say it."""
    return identity(data).rank


def identity(data: bytes) -> Identity:
    """Whose dump it is. A damaged file says what its first part does."""
    if data.lstrip()[:1] == b"{":
        try:
            dump = decode_json(data, "dump")
        except UnreadableInput:
            return Identity()
        seen = _Seen()
        if isinstance(dump, dict):
            seen.config = dump.get("pg_config")
            entries = dump.get("entries")
            for entry in entries if isinstance(entries, list) else ():
                if isinstance(entry, dict) and seen.learns_from(entry):
                    break
        return seen.identity()
    return _Walker(data).walk().identity()


@dataclass
class _Seen:
    """Groups by name, and where this rank stands in one of them by a point-to-point call."""

    config: object = None
    places: dict[str, int] = field(default_factory=dict)

    def learns_from(self, entry: Mapping[object, object]) -> bool:
        """Notes a point-to-point call; whether it was one."""
        name, group = entry.get("profiling_name"), entry.get("process_group")
        match = _P2P.search(name) if isinstance(name, str) and len(name) < 1000 else None
        if match is None:
            return False
        key = group[0] if isinstance(group, (list, tuple)) and group else group
        if isinstance(key, str):
            self.places.setdefault(key, int(match[1]))
        return isinstance(key, str)

    def identity(self) -> Identity:
        """What all this says together; nothing where it contradicts itself."""
        config = self.config
        if isinstance(config, str):
            try:
                config = decode_json(config.encode("utf-8", "replace"), "pg_config")
            except UnreadableInput:
                config = None
        groups: dict[str, tuple[int, ...]] = {}
        for name, value in config.items() if isinstance(config, dict) else ():
            ranks = ranks_of(value.get("ranks") if isinstance(value, dict) else value)
            if ranks and isinstance(name, str):
                groups[name] = ranks
        if not groups:
            return Identity()
        fewest, *others = sorted(groups.values(), key=len)
        common = set(fewest).intersection(*others)
        for name, place in self.places.items():
            if name in groups and place < len(groups[name]):
                common &= {groups[name][place]}
        world = max(max(ranks) for ranks in groups.values()) + 1
        return Identity(next(iter(common)) if len(common) == 1 else None, world)


class _Mark:
    """Where a pickle began a list, a tuple or the items of a dictionary."""


_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "EMPTY_TUPLE": 0}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"}
_NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG", "BINFLOAT", "FLOAT"}
_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


class _Walker:
    """Follows a pickle of plain data until the first call between two ranks, or to where it is cut."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}
        self._seen = _Seen()

    def walk(self) -> _Seen:
        """What was seen."""
        import pickletools  # mostly names say enough

        try:
            for steps, (op, arg, _) in enumerate(pickletools.genops(self._data)):
                if steps > _MOST_STEPS or (arg == "entries" and self._is_enough()) or self._step(op.name, arg):
                    break
        except (ValueError, IndexError, KeyError, TypeError, OverflowError):
            pass  # damaged or hostile: what was seen before counts
        self._note_config()
        return self._seen

    def _note_config(self) -> None:
        """The outermost dictionary is filled when its last value is complete, so its parts lie on the stack till then."""
        if self._seen.config is None and len(self._stack) > 3 and isinstance(self._stack[1], _Mark):
            for key, value in zip(self._stack[2::2], self._stack[3::2], strict=False):
                if key == "pg_config":
                    self._seen.config = value

    def _is_enough(self) -> bool:
        """Whether the entries need not be read."""
        self._note_config()
        known = self._seen.config is not None and self._seen.identity().rank is not None
        return known or not any(mark in self._data for mark in _MARKS_OF_P2P)

    def _step(self, op: str, arg: object) -> bool:
        """Does one operation; whether all is known."""
        stack = self._stack
        if op in _TEXTS or op in _NUMBERS:
            stack.append(arg)
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(str(arg))])
        elif op in ("BINPUT", "LONG_BINPUT"):
            self._memo[int(str(arg))] = stack[-1]
        elif op == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif op == "MARK":
            stack.append(_Mark())
        elif op in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if op == "EMPTY_DICT" else [])
        elif op in _TUPLES:
            count = _TUPLES[op]
            items = [stack.pop() for _ in range(count)]
            stack.append(tuple(reversed(items)))
        elif op in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "TUPLE"):
            return self._gather(op)
        elif op not in ("PROTO", "FRAME"):
            raise ValueError(op)
        return False

    def _gather(self, op: str) -> bool:
        stack = self._stack
        if op in ("SETITEM", "APPEND"):
            count = 2 if op == "SETITEM" else 1
            items = [stack.pop() for _ in range(count)][::-1]
        else:
            items = []
            while not isinstance(top := stack.pop(), _Mark):
                items.append(top)
            items.reverse()
        if op == "TUPLE":
            stack.append(tuple(items))
            return False
        owner = stack[-1]
        if isinstance(owner, list):
            owner.extend(items)
            return False
        if not isinstance(owner, dict):
            raise ValueError(op)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise TypeError("a key of this kind is in no dump")
            owner[key] = value
            if key == "pg_config":
                self._seen.config = value
        if "profiling_name" in owner and self._seen.learns_from(owner):
            self._note_config()
            return self._seen.config is not None
        return False
