"""What stands before the entries of a dump: version, groups, what the rank says of them, and the first entry."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unhang.model import ProcessGroup
from unhang.read import restricted_pickle
from unhang.read.dumps.decode_slow import Status, status_of
from unhang.read.dumps.layouts import (
    APPENDS,
    GET,
    LONG_PUT,
    MAX_RAW,
    PUT,
    Memo,
    Quirk,
    entry_end,
    normalised,
    values_of,
)
from unhang.read.fields import text
from unhang.read.flight_recorder import groups_of_config

ENTRIES = b"X\x07\x00\x00\x00entries"
_ENDS = (b"eu.", b"euq", b"eur")


@dataclass(slots=True)
class Head:
    """The head of one dump. `first`: its first entry, normalised, from `start` to `first_end`; None if there is none.

    `names`: the fields of an entry in their order; `keys`: the memo's numbers of those names. `first_limit`: the memo's
    end behind the first entry. `at`: where that entry lies in a buffer of many dumps.
    """

    version: str
    groups: Mapping[str, ProcessGroup]
    status: Status
    memo: Memo
    start: int
    first: bytes = b""
    first_end: int = 0
    names: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()
    first_limit: int = 0
    at: int = -1


def head_of(data: bytes | bytearray, size: int) -> Head:
    """The head of a dump of which the first `size` bytes of `data` are there.

    Raises:
        Quirk: it is not written like torch's pickler does, or is longer.
    """
    cut = data.find(ENTRIES, 0, size)
    if data[:2] != b"\x80\x02" or cut < 0:
        raise Quirk("no entries")
    fields, texts = _unpickled(bytes(data[2:cut]))
    version = fields.get("version")
    if type(version) is not str or not version.startswith("2.") or "entries" in fields:
        raise Quirk("another version")
    at = cut + len(ENTRIES)
    width = {PUT: 2, LONG_PUT: 5}.get(data[at], 0)
    number = int.from_bytes(data[at + 1 : at + width], "little")
    memo = Memo(texts, max(texts, default=-1) + 1)
    memo.define(number, -1)
    texts[number] = "entries"
    at += width
    if not width or data[at : at + 2] != b"](":
        raise Quirk("entries are no list")
    groups = groups_of_config(fields.get("pg_config"))
    head = Head(text(fields, "version"), groups, status_of(fields.get("pg_status")), memo, at + 2)
    if data[at + 2] != APPENDS:
        _read_first(data, size, head)
    return head


def _unpickled(data: bytes) -> tuple[dict[Any, Any], dict[int, str]]:
    """The fields before the entries, and the texts in the memo. The outer mark shows whether anything else is there."""
    whole = b"\x80\x02(" + data + b"ut."
    stream = io.BufferedReader(io.BytesIO(whole), 1 << 16)  # type: ignore[arg-type]
    unpickler = restricted_pickle.RestrictedUnpickler(stream)
    try:
        made = unpickler.load()
    except restricted_pickle.PICKLE_ERRORS as error:
        raise Quirk("its head is no pickle") from error
    if stream.tell() != len(whole) or type(made) is not tuple or len(made) != 1 or type(made[0]) is not dict:
        raise Quirk("its head is no dictionary")
    memo = unpickler.memo.copy()  # type: ignore[attr-defined]
    return made[0], {number: value for number, value in memo.items() if type(value) is str}


def _read_first(data: bytes | bytearray, size: int, head: Head) -> None:
    """The first entry, which defines the names of the fields."""
    start = head.start
    window = bytes(data[start : min(size, start + MAX_RAW)])
    end = entry_end(window, 0)
    head.first_end = start + end
    head.first = normalised(window[:end], head.memo)
    pairs = values_of(head.first)
    keys = [int.from_bytes(head.first[k.offset + 1 : k.offset + (5 if k.is_long else 2)], "little") for k, _ in pairs]
    names = tuple(head.memo.texts.get(key, "") for key in keys)
    if len({*names}) != len(names) or not names:
        raise Quirk("a field is there twice")
    head.names, head.keys, head.first_limit = names, tuple(keys), head.memo.end


def is_end(data: bytes, at: int) -> bool:
    """Whether the dump ends here, behind its last entry."""
    if data[at : at + 3] not in _ENDS:
        return False
    return data[at + 2 : at + 3] == b"." or data[at + (4 if data[at + 2 : at + 3] == b"q" else 7)] == ord(".")


def first_get(head: Head) -> bytes:
    """The bytes that every entry begins with: its first field's name."""
    return head.first[: 4 if head.first[2] == GET else 7]
