"""What stands before the entries of a dump: version, groups, what the rank says of them, and the first entry."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unhang.model import ProcessGroup
from unhang.read import restricted_pickle
from unhang.read.dumps.decode_slow import Status, status_of
from unhang.read.dumps.definitions import MAX_MEMO, Memo
from unhang.read.dumps.layouts import GET, INTS, LONG_GET, LONG_PUT, PUT, Layout, Quirk, int_at
from unhang.read.fields import text
from unhang.read.flight_recorder import groups_of_config

ENTRIES = b"X\x07\x00\x00\x00entries"
_RECORD = b"X\x09\x00\x00\x00record_id"
_ENDS = (b"eu.", b"euq", b"eur")


@dataclass(slots=True)
class Head:
    """The head of one dump. `start`: where its first entry begins; `get`: the bytes that all later entries begin with.

    `at`: where the first entry lies in a buffer of many dumps. `names`: the fields of an entry in their order; `keys`:
    the memo's numbers of those names. `known`: the memo's end before the entries.
    """

    version: str
    groups: Mapping[str, ProcessGroup]
    status: Status
    memo: Memo
    start: int
    get: bytes
    known: int
    at: int = -1
    names: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()

    def read_first(self, first: bytes, known: dict[int, Layout]) -> None:
        """Names and numbers of the fields, from the first entry without its definitions.

        Args:
            first: the entry.
            known: layouts of such entries of other dumps, by length; is added to.

        Raises:
            Quirk: it is no entry, or has a field twice.
        """
        like = known.get(len(first))
        keys = like.keys_in(first) if like is not None else None
        if keys is None:
            like = known[len(first)] = Layout.of_keys(first)
            keys = like.keys_in(first) or ()
        names = tuple(self.memo.texts.get(key, "") for key in keys)
        if len({*names}) != len(names) or not names:
            raise Quirk("a field is there twice")
        self.names, self.keys = names, keys


def head_of(data: bytes, with_texts: bool = True) -> Head:
    """The head of a dump that begins with `data`. `with_texts`: with the texts that it has memoised.

    Raises:
        Quirk: it is not written like torch's pickler does, or is longer.
    """
    cut = data.find(ENTRIES)
    if data[:2] != b"\x80\x02" or cut < 0:
        raise Quirk("no entries")
    fields, texts = _unpickled(bytes(data[2:cut]), with_texts)
    version = fields.get("version")
    if type(version) is not str or not version.startswith("2.") or "entries" in fields:
        raise Quirk("another version")
    at = cut + len(ENTRIES)
    width = {PUT: 2, LONG_PUT: 5}.get(data[at], 0)
    number = int.from_bytes(data[at + 1 : at + width], "little")
    memo = Memo(texts, max(texts, default=-1) + 1)
    if not width or not memo.end <= number < MAX_MEMO or data[at + width : at + width + 2] != b"](":
        raise Quirk("entries are no list")
    texts[number], memo.end = "entries", number + 1
    at += width + 2
    groups = groups_of_config(fields.get("pg_config"))
    status, get = status_of(fields.get("pg_status")), _first_get(data, at)
    return Head(text(fields, "version"), groups, status, memo, at, get, memo.end)


def _first_get(data: bytes, at: int) -> bytes:
    """What gets the first field's name, which the entry here defines."""
    if data[at : at + 3] != b"}(X":
        raise Quirk("no entries")
    end = at + 7 + int.from_bytes(data[at + 3 : at + 7], "little")
    if data[end] == PUT:
        return bytes([GET, data[end + 1]])
    if data[end] == LONG_PUT:
        return bytes([LONG_GET]) + data[end + 1 : end + 5]
    raise Quirk("a field's name that is not memoised")


def first_record(data: bytes, head: Head) -> int:
    """The record number of the first entry.

    Raises:
        Quirk: it has none.
    """
    at = data.find(_RECORD, head.start) + len(_RECORD)
    at += {PUT: 2, LONG_PUT: 5}.get(data[at], 0)
    if at < len(_RECORD) or data[at] not in INTS:
        raise Quirk("no record number")
    return int_at(data, at)


def _unpickled(data: bytes, with_texts: bool) -> tuple[dict[Any, Any], dict[int, str]]:
    """The fields before the entries, and the texts in the memo where they are wanted. The outer mark shows whether anything else is there."""
    whole = b"\x80\x02(" + data + b"ut."
    stream = io.BufferedReader(io.BytesIO(whole), 1 << 16)
    unpickler = restricted_pickle.RestrictedUnpickler(stream)
    try:
        made = unpickler.load()
    except restricted_pickle.PICKLE_ERRORS as error:
        raise Quirk("its head is no pickle") from error
    if stream.tell() != len(whole) or type(made) is not tuple or len(made) != 1 or type(made[0]) is not dict:
        raise Quirk("its head is no dictionary")
    memo: dict[int, Any] = unpickler.memo.copy() if with_texts else {}
    return made[0], {number: value for number, value in memo.items() if type(value) is str}


def is_end(data: bytes, at: int) -> bool:
    """Whether the dump ends here, behind its last entry."""
    if data[at : at + 3] not in _ENDS:
        return False
    return data[at + 2 : at + 3] == b"." or data[at + (4 if data[at + 2 : at + 3] == b"q" else 7)] == ord(".")
