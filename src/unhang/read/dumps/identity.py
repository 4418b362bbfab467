"""Whose a dump is: by its name, the attempt, snapshot or replica too; by its content, read by a walker that executes and builds nothing large."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from unhang.errors import UnreadableInput
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.dumps.head import ranks_of
from unhang.read.files import decode_json

MAX_RANK_DIGITS = 7

COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_DATA = (".json", ".pickle", ".pkl", ".bin", ".dump", ".trace")
ARCHIVES = (".tar", ".tgz", ".tzst", ".zip", *(f".tar{c}" for c in COMPRESSED))
_UNFINISHED = lazy_pattern(r"\.(tmp|temp|part|partial|crdownload|swp|lock|pyc|pipe)$|~$", re.IGNORECASE)
_OTHER = lazy_pattern(
    r"^core(\.\d+)?$|\.(log|out|err|md|rst|py|sh|ya?ml|toml|cfg|ini|csv|html?|svg|png|pdf|so|o|c|cpp|cu|h|sqlite|db|npz?|safetensors|ptx)$",
    re.I,
)

# Which run the file is of: the later one counts. Restarts before snapshots: a snapshot is one of its run.
_KINDS = {
    "attempt": ("attempt", "restart", "retry", "incarnation"),
    "quorum": ("quorum",),
    "iteration": ("iteration", "iter", "step", "snapshot", "epoch"),
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words}
_NUMBERED = lazy_pattern(rf"(?:^|(?<=[^a-z]))({'|'.join(_KIND_OF)})s?[_\-=.]?(\d{{1,12}})(?!\d)", re.IGNORECASE)
_MOMENT = lazy_pattern(
    r"(?<!\d)(?:20\d\d([-_.]?)[01]\d\1[0-3]\d(?:[-_T. ]?[0-2]\d([-_:.]?)[0-5]\d\2[0-5]\d(?:[.,_]\d{3,9})?Z?)?"
    r"|1\d{9}(?:\d{3}){0,3})(?!\d)"
)
_PROCESS = lazy_pattern(r"(?:^|(?<=[^a-z]))pid[_\-=.]?\d+", re.IGNORECASE)
_REPLICA = lazy_pattern(r"(?:^|(?<=[^a-z]))replica(?:[_-]?(?:group|id|rank))?[_\-=]?(\d{1,9})(?!\d)", re.IGNORECASE)
_COPY = lazy_pattern(r"\s*\(\d+\)$|[ _-]+copy(?:[ _-]?\d+)?$|\.(?:bak|old|orig)$", re.IGNORECASE)
_RANK = lazy_pattern(r"(?:(global|local|node|group|host)[_-]?)?rank[_\-=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_ADDRESS = lazy_pattern(r"\d+([.-])\d+\1\d+\1\d+")
_PLACE = lazy_pattern(r"(?:node|host|pod)[_-]?$", re.IGNORECASE)
_KNOWN = lazy_pattern(
    r"(?:ccl|comm|comm_lib|(?:^|_)fr|flight(?:_?recorder)?)_(?:trace|dump)|trace_rank[_-]?$|^_dump_$", re.I
)
_PLAIN = lazy_pattern(r"([^\d]*?)(\d{1,7})((?:\.[A-Za-z]+\d*)*)$")

Generation = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
NO_GENERATION: Generation = ((), (), ())
NO_MOMENT = (0, "")


@dataclass(frozen=True, slots=True)
class Named:
    """What a file name says.

    `family`: the name without its rank. `known`: it is a name that dumps bear. `fields`: all its numbers, of which
    `chosen` is the rank's. `moment`: digits of a date or time. `is_copy`: marked as a copy.
    """

    number: int | None
    family: str
    known: bool = False
    suffix: str = ""
    fields: tuple[int, ...] = ()
    chosen: int = -1
    generation: Generation = NO_GENERATION
    moment: tuple[int, str] = NO_MOMENT
    replica: str = ""
    is_copy: bool = False

    @property
    def shape(self) -> str:
        """The name with all numbers blanked, if another of them could be the rank; else empty."""
        return re.sub(r"\d+", "#", self.family) if len(self.fields) > 1 else ""


def is_unfinished(name: str) -> bool:
    """Whether the name is that of a temporary file, a lock or a pipe."""
    return bool(_UNFINISHED.search(name))


def is_archive(name: str) -> bool:
    """Whether the name is that of an archive of files."""
    return name.lower().endswith(ARCHIVES)


def is_other(name: str) -> bool:
    """Whether the name is that of something else than a dump, whatever its numbers."""
    return bool(_OTHER.search(name))


def named(name: str) -> Named:
    """What a file name says of the dump in it."""
    if match := _PLAIN.match(name):
        family, digits, suffix = match.groups()
        if (known := _plain_family(family)) is not None and _is_data(suffix):
            return Named(int(digits), family, known, suffix, (int(digits),), 0)
    return _named_slowly(name)


@lru_cache(4096)
def _plain_family(family: str) -> bool | None:
    """Whether a name that begins like this is a dump's; None if the number behind it need not be a rank."""
    tail = family.rstrip("_-=.").lower()
    if tail.endswith((*_KIND_OF, "pid", "replica", "replica_group", "replica_id", "replica_rank", "(")):
        return None
    return bool(_KNOWN.search(family))


@lru_cache(256)
def _is_data(suffix: str) -> bool:
    parts = ["." + part for part in suffix.lower().split(".")[1:]]
    return all(part in COMPRESSED or part in _DATA for part in parts)


def _named_slowly(name: str) -> Named:
    stem, suffix, is_copy = _stem(name)
    replica = match[1] if (match := _REPLICA.search(stem)) else ""
    generation, moment, rest = _generation(stem)
    rest = _PROCESS.sub("", _REPLICA.sub("", rest) if replica else rest).rstrip("_-. ")
    spans = [m for m in re.finditer(r"\d+", rest) if len(m[0]) <= MAX_RANK_DIGITS]
    if not spans:
        return Named(None, rest, False, suffix, generation=generation, moment=moment, replica=replica, is_copy=is_copy)
    chosen = _rank_field(rest, [m.start() for m in spans])
    span = spans[chosen]
    return Named(
        number=int(span[0]),
        family=rest[: span.start()] + (f"#{rest[span.end() :]}" if rest[span.end() :] else ""),
        known=bool(_KNOWN.search(rest[: span.start()])) and _is_data(suffix),
        suffix=suffix,
        fields=tuple(int(m[0]) for m in spans),
        chosen=chosen,
        generation=generation,
        moment=moment,
        replica=replica,
        is_copy=is_copy,
    )


def _stem(name: str) -> tuple[str, str, bool]:
    """Name without suffixes and marks of a copy, the suffixes, and whether it is a copy."""
    stem, suffix, is_copy = name, "", False
    while True:
        if match := _COPY.search(stem):
            stem, is_copy = stem[: match.start()], True
            continue
        head, dot, tail = stem.rpartition(".")
        if not dot or not head or "." + tail.lower() not in (*COMPRESSED, *_DATA):
            return stem, suffix, is_copy
        stem, suffix = head, f".{tail}{suffix}"


def _generation(text: str) -> tuple[Generation, tuple[int, str], str]:
    """Attempt, quorum and iteration; the moment; and the text without them."""
    generation, moment, rest = NO_GENERATION, NO_MOMENT, text
    if numbered := _NUMBERED.findall(text):
        attempt, quorum, iteration = (
            tuple(int(number) for word, number in numbered if _KIND_OF[word.lower()] == kind) for kind in _KINDS
        )
        generation, rest = (attempt, quorum, iteration), _NUMBERED.sub("", text)
    if moments := [re.sub(r"\D", "", m[0]) for m in _MOMENT.finditer(rest)]:
        digits = max(moments, key=len)
        moment, rest = (len(digits), digits), _MOMENT.sub("", rest)
    return generation, moment, rest


def _rank_field(text: str, starts: list[int]) -> int:
    """Which of the numbers, given by where they start, is the rank."""
    marked = {m.start(2): (m[1] or "").lower() for m in _RANK.finditer(text)}
    for scope in ("global", "", "local"):
        if fitting := [i for i, start in enumerate(starts) if marked.get(start) == scope]:
            is_address = _ADDRESS.match(text, starts[fitting[-1]])
            return len(starts) - 1 if is_address else fitting[-1]
    free = [i for i, start in enumerate(starts) if not _PLACE.search(text[:start])]
    return free[-1] if free else len(starts) - 1


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


def identity(data: bytes) -> Identity:
    """Whose dump it is, from the groups that its rank is in and its point-to-point calls. A damaged file says what its first part does."""
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


_RANK_FOLDER = lazy_pattern(r"(?:global_?)?rank[_-]?(\d{1,7})$|r(\d{1,7})-\d{1,9}$", re.IGNORECASE)


class Folder(NamedTuple):
    """What one folder name says. `home`: the name without the marks of attempts, snapshots and moments."""

    home: str
    generation: Generation = NO_GENERATION
    moment: tuple[int, str] = NO_MOMENT
    replica: str = ""
    rank: int | None = None
    number: int | None = None


@lru_cache(1 << 16)
def folder(name: str) -> Folder:
    """What a folder's name says."""
    generation, moment, home = _generation(name)
    replica = match[1] if (match := _REPLICA.search(name)) else ""
    rank = _RANK_FOLDER.match(name)
    number = int(name) if name.isdecimal() and len(name) <= MAX_RANK_DIGITS else None
    return Folder(home, generation, moment, replica, int(rank[1] or rank[2]) if rank else None, number)
