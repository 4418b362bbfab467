"""What stands before the entries of a dump: version, groups, how far the rank has come in each, and the first entry.

`pg_config` names the groups with their members (gloo writes one nameless group, which says nothing). `pg_status` counts
what was enqueued, started and completed in each, under ids that only entries connect with the names.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from unhang.errors import UnreadableInput
from unhang.model import ProcessGroup
from unhang.read import restricted_pickle
from unhang.read.dumps import DEFAULT_GROUP
from unhang.read.dumps.definitions import MAX_MEMO, Memo
from unhang.read.dumps.entries import RecordedCall, is_of_torchcomms
from unhang.read.dumps.layouts import GET, INTS, LONG_GET, LONG_PUT, PUT, Irregular, Layout, int_at
from unhang.read.files import INT64_MAX, decode_json, encodable, text, whole, wholes

ENTRIES = b"X\x07\x00\x00\x00entries"
_RECORD = b"X\x09\x00\x00\x00record_id"
_ENDS = (b"eu.", b"euq", b"eur")
Status = Mapping[str, tuple[int, int, int]]
_NUMBERS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def groups_of_config(config: object) -> dict[str, ProcessGroup]:
    """Groups by name. gloo writes one nameless group, which says nothing."""
    if isinstance(config, str):
        try:
            config = decode_json(config.encode("utf-8", "replace"), "pg_config")
        except UnreadableInput:
            return {}
    groups = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        fields = value if isinstance(value, dict) else {"ranks": value}
        name, desc, ranks = fields.get("name"), fields.get("desc"), fields.get("ranks")
        group = _group_of(
            key if isinstance(key, str) else "",
            name if isinstance(name, str) else "",
            desc if isinstance(desc, str) else "",
            ranks if isinstance(ranks, str) else ranks_of(ranks),
        )
        if group.name:
            groups[group.name] = group
    return groups


@lru_cache(maxsize=1 << 16)
def _group_of(key: str, name: str, desc: str, ranks: str | tuple[int, ...]) -> ProcessGroup:
    """One object for the same group in the dumps of all its members, which are not compared one by one."""
    return ProcessGroup(encodable(name) or encodable(key), encodable(desc), ranks_of(ranks))


@lru_cache(maxsize=1 << 14)
def _parsed_ranks(text_of_ranks: str) -> tuple[int, ...]:
    """The dump of every rank holds the same text, which names all ranks of the world."""
    try:
        return ranks_of(decode_json(text_of_ranks.encode("utf-8", "replace"), "ranks"))
    except UnreadableInput:
        return ()


def ranks_of(value: object) -> tuple[int, ...]:
    """The members of a group as a dump names them, in a list or as its text; empty where it is neither."""
    return _parsed_ranks(value) if isinstance(value, str) else wholes(value)


def completed_group(known: ProcessGroup | None, name: str, desc: str, backend: str) -> ProcessGroup:
    """The group that a call names, with the members that the configuration knows."""
    if known is None:
        return ProcessGroup(name, desc, (), backend=backend)
    if known.desc and known.backend:
        return known
    return ProcessGroup(known.name, known.desc or desc, known.ranks, known.timeout_s, known.backend or backend)


def global_rank(group: ProcessGroup, number: int) -> int:
    """The global rank of a member that a dump names by its number within the group; -1 where it is not known."""
    if 0 <= number < len(group.ranks):
        return group.ranks[number]
    return number if group.name == DEFAULT_GROUP and not group.ranks else -1


def status_of(value: object) -> Status:
    """What the rank says of its groups, by their numeric ids: enqueued, started and completed sequence numbers."""
    if not isinstance(value, dict):
        return {}
    return {key: _numbers(fields) for key, fields in value.items() if isinstance(key, str) and isinstance(fields, dict)}


def _numbers(fields: Mapping[Any, Any]) -> tuple[int, int, int]:
    enqueued, started, completed = map(fields.get, _NUMBERS)
    if type(enqueued) is type(started) is type(completed) is int and not (
        min(enqueued, started, completed) < 0 or max(enqueued, started, completed) > INT64_MAX
    ):
        return enqueued, started, completed
    return _number(fields, _NUMBERS[0]), _number(fields, _NUMBERS[1]), _number(fields, _NUMBERS[2])


def _number(fields: Mapping[Any, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or value > INT64_MAX:
        value = whole(fields, key)
    return -1 if value is None or value < 0 else value


def match_status(
    status: Status,
    names: Mapping[str, str],
    configured: Mapping[str, ProcessGroup],
    group: Callable[[str], ProcessGroup],
) -> dict[str, ProcessGroup]:
    """The group of each numeric id, where it is known: its entries say it, or that one is left over.

    Ids count in the order of creation, from the default group; so do the names of groups that are numbers. A group that has no
    call has no status, but has its id.
    """
    found = {number: group(names[number]) for number in status if number in names}
    unnamed = [number for number in status if number not in found]
    others = {name: of for name, of in configured.items() if name not in names.values()}
    if unnamed and all(name.isdecimal() for name in configured):
        by_id = {str(i): name for i, name in enumerate(sorted(configured, key=int))}
        if all(by_id.get(number, name) == name for number, name in names.items()):
            placed = {number: by_id[number] for number in unnamed if number in by_id}
            found |= {n: others.pop(name) for n, name in placed.items() if name in others}
            unnamed = [number for number in unnamed if number not in found]
    if len(status) == len(configured) and unnamed:
        if "0" in unnamed and "0" in others:
            unnamed.remove("0")
            found["0"] = others.pop("0")
        is_ordered = all(text.isdecimal() for text in (*unnamed, *others))
        if len(unnamed) == len(others) and (len(others) == 1 or is_ordered):
            created = (sorted(texts, key=lambda text: (len(text), text)) for texts in (unnamed, others))
            found |= {number: others[name] for number, name in zip(*created, strict=True)}
    return found


def is_active_only(records: tuple[int, int], entries: int, any_completed: bool, status: Status) -> bool:
    """Whether the dump leaves out the completed calls. `records`: the numbers of its first and its last one."""
    if any_completed:
        return False
    first, last = records
    enqueued = sum(max(numbers[0], 0) for numbers in status.values())
    completed = any(numbers[2] > 0 for numbers in status.values())
    return first > 0 or last - first >= entries or enqueued > entries or completed


@dataclass(slots=True)
class Head:
    """The head of one dump. `start`: where its first entry begins; `get`: the bytes that all later entries begin with.

    `names`: the fields of an entry in their order; `keys`:
    the memo's numbers of those names.
    """

    version: str
    groups: Mapping[str, ProcessGroup]
    status: Status
    memo: Memo
    start: int
    get: bytes
    names: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()

    def read_first(self, first: bytes, known: dict[int, Layout]) -> None:
        """Names and numbers of the fields, from the first entry without its definitions.

        Args:
            first: the entry.
            known: layouts of such entries of other dumps, by length; is added to.

        Raises:
            Irregular: it is no entry, or has a field twice.
        """
        like = known.get(len(first))
        keys = like.keys_in(first) if like is not None else None
        if keys is None:
            like = known[len(first)] = Layout.of_keys(first)
            keys = like.keys_in(first) or ()
        names = tuple(self.memo.texts.get(key, "") for key in keys)
        if len({*names}) != len(names) or not names:
            raise Irregular("a field is there twice")
        self.names, self.keys = names, keys


def head_of(data: bytes, with_texts: bool = True) -> Head:
    """The head of a dump that begins with `data`. `with_texts`: with the texts that it has memoised.

    Raises:
        Irregular: it is not written like torch's pickler does, or is longer.
    """
    cut = data.find(ENTRIES)
    if data[:2] != b"\x80\x02" or cut < 0:
        raise Irregular("no entries")
    fields, texts = _unpickled(bytes(data[2:cut]), with_texts)
    version = fields.get("version")
    if type(version) is not str or not version.startswith("2.") or "entries" in fields:
        raise Irregular("another version")
    if is_of_torchcomms(fields):
        raise Irregular("other meanings")
    at = cut + len(ENTRIES)
    width = {PUT: 2, LONG_PUT: 5}.get(data[at], 0)
    number = int.from_bytes(data[at + 1 : at + width], "little")
    memo = Memo(texts, max(texts, default=-1) + 1)
    if not width or not memo.end <= number < MAX_MEMO or data[at + width : at + width + 2] != b"](":
        raise Irregular("entries are not a list")
    texts[number], memo.end = "entries", number + 1
    at += width + 2
    groups = groups_of_config(fields.get("pg_config"))
    status, get = status_of(fields.get("pg_status")), _first_get(data, at)
    return Head(text(fields, "version"), groups, status, memo, at, get)


def _first_get(data: bytes, at: int) -> bytes:
    """What gets the first field's name, which the entry here defines."""
    if data[at : at + 3] != b"}(X":
        raise Irregular("no entries")
    end = at + 7 + int.from_bytes(data[at + 3 : at + 7], "little")
    if data[end] == PUT:
        return bytes([GET, data[end + 1]])
    if data[end] == LONG_PUT:
        return bytes([LONG_GET]) + data[end + 1 : end + 5]
    raise Irregular("a field's name that is not memoised")


def first_record(data: bytes, head: Head) -> int:
    """The record number of the first entry.

    Raises:
        Irregular: it has none.
    """
    at = data.find(_RECORD, head.start) + len(_RECORD)
    at += {PUT: 2, LONG_PUT: 5}.get(data[at], 0)
    if at < len(_RECORD) or data[at] not in INTS:
        raise Irregular("no record number")
    return int_at(data, at)


def _unpickled(data: bytes, with_texts: bool) -> tuple[dict[Any, Any], dict[int, str]]:
    """The fields before the entries, and the texts in the memo where they are wanted. The outer mark shows whether anything else is there."""
    whole = b"\x80\x02(" + data + b"ut."
    stream = io.BufferedReader(io.BytesIO(whole), 1 << 16)
    unpickler = restricted_pickle.RestrictedUnpickler(stream)
    try:
        made = unpickler.load()
    except restricted_pickle.PICKLE_ERRORS as error:
        raise Irregular("its head is not a pickle") from error
    if stream.tell() != len(whole) or type(made) is not tuple or len(made) != 1 or type(made[0]) is not dict:
        raise Irregular("its head is not a dictionary")
    memo: dict[int, Any] = unpickler.memo.copy() if with_texts else {}
    return made[0], {number: value for number, value in memo.items() if type(value) is str}


def is_end(data: bytes, at: int) -> bool:
    """Whether the dump ends here, behind its last entry."""
    if data[at : at + 3] not in _ENDS:
        return False
    return data[at + 2 : at + 3] == b"." or data[at + (4 if data[at + 2 : at + 3] == b"q" else 7)] == ord(".")


@dataclass
class _Made:
    """The groups of one name that a rank has made, one after the other. `number`: of the last one; `count`: made anew so often."""

    number: int
    seen: set[int]
    last_seq: int = 0
    count: int = 0
    begin_ns: int = 0
    is_mixed: bool = False


def of_last_groups(calls: Sequence[RecordedCall]) -> tuple[list[RecordedCall], dict[str, tuple[int, int]]]:
    """The calls without those of groups that the rank destroyed and made anew under the same name, in the order of issue.

    A group made anew counts its calls from the start again, under another number. With it, name -> how often it was made anew, and
    when its first call was.
    """
    made: dict[tuple[str, str], _Made] = {}
    for call in calls:
        if (known := made.get((call.group, call.backend))) is None:
            known = made[call.group, call.backend] = _Made(call.pg_id, {call.pg_id})
        elif call.pg_id != known.number:
            known.is_mixed = known.is_mixed or call.pg_id in known.seen or call.collective_seq > known.last_seq
            known.number, known.count, known.begin_ns = call.pg_id, known.count + 1, call.created_ns
            known.seen.add(call.pg_id)
        known.last_seq = call.collective_seq
    anew = {key: m for key, m in made.items() if m.count and not m.is_mixed}
    kept = [c for c in calls if (m := anew.get((c.group, c.backend))) is None or c.pg_id == m.number]
    return kept, {group: (m.count, m.begin_ns) for (group, _), m in anew.items()}
