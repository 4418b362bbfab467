"""The last calls of many dumps as one Shard, from the head and the tail of each file alone.

A dump that does not look like one that torch's pickler wrote is left to the reader that takes any dump.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from unhang.model import CALL_COLUMNS, PROGRESS_COLUMNS, CallState, CollectiveTable, ProcessGroup
from unhang.model.calls import Interned, Sizes
from unhang.read.dumps.regular import Entries, Part, read_entries
from unhang.read.dumps.shard import DumpFile, RankDump, Shard, merge
from unhang.read.dumps.skeleton import UNKNOWN, Ints
from unhang.read.flight_recorder import global_rank, groups_of_config
from unhang.read.restricted_pickle import PICKLE_ERRORS, RestrictedUnpickler

HEAD_BYTES, TAIL_BYTES = 48 << 10, 12 << 10
MOST_HEAD_BYTES = 4 << 20
_LONGER = 8
_ENTRIES = b"X\x07\x00\x00\x00entries"
_FRAMES = b"}(X\x06\x00\x00\x00frames"
_X = ord("X")
_END = re.compile(rb"ueu(?:q.|r....)?\.\Z", re.DOTALL)  # the last entry, the list, the dump, and perhaps its number
_P2P = re.compile(r"(?:send|recv) \d+(?:->|<-)(\d+)$")
_STATES = {"scheduled": CallState.SCHEDULED, "started": CallState.STARTED, "completed": CallState.COMPLETED}


class NotRegular(Exception):
    """A dump that has to be read in another way."""


@dataclass(frozen=True)
class _Head:
    header: dict[str, object]
    groups: Mapping[str, ProcessGroup]
    strings: dict[int, str]
    pattern: bytes


@dataclass(frozen=True)
class _Tail:
    file: DumpFile
    head: _Head
    data: bytes
    starts: Ints
    entries: int


def read_tails(files: Sequence[DumpFile], last: int, tail_bytes: int = TAIL_BYTES) -> tuple[Shard, list[DumpFile]]:
    """The last calls of the dumps, without stacks, and the files that have to be read in another way."""
    tails, others = [], []
    for file in files:
        try:
            tails.append(_tail(file, last, tail_bytes))
        except (NotRegular, OSError, *PICKLE_ERRORS):
            others.append(file)
    if not tails:
        return Shard(), others
    offsets = np.cumsum([0, *(len(t.data) for t in tails)])
    parts = [Part(t.starts + o, t.head.strings) for t, o in zip(tails, offsets.tolist(), strict=False)]
    entries = read_entries(b"".join(t.data for t in tails), parts, frames=False)
    table, ok = _Columns(tails, entries).table()
    return table, [*others, *(t.file for t, good in zip(tails, ok, strict=True) if not good)]


def decode_tails(files: Sequence[DumpFile], *, last: int) -> Shard:
    """The last calls of the dumps, without stacks: quickly where their writer was torch, else as any dump is read."""
    from unhang.read.dumps.decode import decode_shard

    shards = []
    for count, tail_bytes in ((last, TAIL_BYTES), (_LONGER * last, _LONGER * TAIL_BYTES)):
        shard, files = read_tails(files, count, tail_bytes)
        shards.append(shard)
        if not files:
            return merge([s for s in shards if s.dumps])
    return merge([*(s for s in shards if s.dumps), decode_shard(files, last=last, frames=False)])


def _tail(file: DumpFile, last: int, tail_bytes: int) -> _Tail:
    if file.member or "://" in file.path:
        raise NotRegular
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        size = os.fstat(descriptor).st_size
        head_bytes = HEAD_BYTES
        while True:
            head = os.pread(descriptor, head_bytes, 0)
            if not head.startswith(b"\x80\x02"):
                raise NotRegular
            if _FRAMES in head or head_bytes >= min(size, MOST_HEAD_BYTES):
                break
            head_bytes *= 8
        told = _head(head)
        data = os.pread(descriptor, tail_bytes, max(0, size - tail_bytes))
    finally:
        os.close(descriptor)
    end = _END.search(data, len(data) - 9)
    if end is None or size < tail_bytes:
        raise NotRegular
    _add_strings(data, told.strings)
    starts = [m.start() + 1 for m in re.finditer(re.escape(told.pattern), data)][-last:]
    if len(starts) < last:
        raise NotRegular  # a short dump is quickly read as a whole
    return _Tail(file, told, data, np.array([*starts, end.start() + 1]), 0)


def _head(data: bytes) -> _Head:
    """Header, strings and the bytes that separate entries.

    Every string is followed by its number; where one number would be given twice, nothing is certain.
    """
    end = data.find(_ENTRIES)
    first = data.find(_FRAMES, end)
    if end < 0 or first < 0:
        raise NotRegular
    unpickler = RestrictedUnpickler(io.BufferedReader(io.BytesIO(data[:end] + b"u."), 1 << 16))
    header = unpickler.load()
    if not isinstance(header, dict) or not str(header.get("version", "")).startswith("2."):
        raise NotRegular
    strings: dict[int, str] = {}
    _add_strings(data, strings)
    key = first + len(_FRAMES)
    get = b"h" + data[key + 1 : key + 2] if data[key : key + 1] == b"q" else b"j" + data[key + 1 : key + 5]
    return _Head(header, groups_of_config(header.get("pg_config")), strings, b"u}(" + get + b"](")


def _add_strings(data: bytes, strings: dict[int, str]) -> None:
    """Adds `X length text q number`. Lengths beyond 255 and texts that are cut are no names that entries use."""
    flat = np.frombuffer(data, dtype=np.uint8)
    at = np.flatnonzero(flat[:-8] == _X)
    at = at[(flat[at + 2] | flat[at + 3] | flat[at + 4]) == 0]
    for begin in at.tolist():
        stop = begin + 5 + data[begin + 1]
        opcode = data[stop : stop + 1]
        if opcode == b"q" and stop + 2 <= len(data):
            number = data[stop + 1]
        elif opcode == b"r" and stop + 5 <= len(data):
            number = int.from_bytes(data[stop + 1 : stop + 5], "little")
        else:
            continue
        text = data[begin + 5 : stop].decode()
        if strings.setdefault(number, text) != text:
            raise NotRegular


@cache
def _sizes(segment: bytes) -> Sizes:
    """A list of lists of integers, as torch writes it."""
    value = RestrictedUnpickler(io.BufferedReader(io.BytesIO(b"\x80\x02" + segment + b"."))).load()
    return tuple(tuple(dims) for dims in value)


class _Columns:
    """Turns entries into the columns of a table, with the meaning that the reader of single entries gives them."""

    def __init__(self, tails: Sequence[_Tail], entries: Entries) -> None:
        self._tails, self._e = tails, entries

    def table(self) -> tuple[Shard, list[bool]]:
        """The shard of the parts that are regular, and which these are."""
        e = self._e
        backends, ops, peers = self._names()
        numbers = e.numbers
        retired = numbers["retired"] == 1
        state = self._states(retired, np.array([b == "gloo" for b in backends])[e.strings["profiling_name"]])
        is_p2p = np.where(
            numbers["is_p2p"] == UNKNOWN, np.array(peers)[e.strings["profiling_name"]] >= 0, numbers["is_p2p"] == 1
        )
        groups, group_N = self._groups(backends)
        op_N = np.array(ops)[e.strings["profiling_name"]]
        names, op_ids = np.unique(op_N, return_inverse=True)
        state = self._settled(state, is_p2p, retired, group_N, op_N, backends)
        sizes, dtypes, threads = Interned(), Interned(), Interned()
        known = {k: np.where(v == UNKNOWN, 0, v) for k, v in numbers.items()}
        columns = {
            "rank": np.array([t.file.rank for t in self._tails])[e.file],
            "group": group_N,
            "seq": np.where(is_p2p, known["p2p_seq_id"], known["collective_seq_id"]),
            "op": op_ids,
            "in_sizes": self._segment("input_sizes", sizes, lambda _, raw: _sizes(raw), ()),
            "out_sizes": self._segment("output_sizes", sizes, lambda _, raw: _sizes(raw), ()),
            "dtype": self._segment("input_dtypes", dtypes, self._dtype, ""),
            "state": state,
            "is_p2p": is_p2p,
            "peer": self._peers(np.array(peers)[e.strings["profiling_name"]], groups, group_N),
            "created_ns": known["time_created_ns"],
            "started_ns": known["time_discovered_started_ns"],
            "completed_ns": known["time_discovered_completed_ns"],
            "timeout_ms": np.where(numbers["timeout_ms"] == UNKNOWN, -1, numbers["timeout_ms"]),
            "frames": np.full(len(e.file), -1),
            "thread": self._threads(threads),
            "record_id": known["record_id"],
        }
        return self._shard(columns, groups, tuple(names.tolist()), (sizes, dtypes, threads), backends)

    def _names(self) -> tuple[list[str], list[str], list[int]]:
        """Backend, op and peer within the group (-1: none) of each distinct text."""
        backends, ops, peers = [], [], []
        for text in self._e.texts:
            backend, _, op = text.rpartition(":")
            match = _P2P.match(op)
            backends.append(backend)
            ops.append(op.split(" ", 1)[0] if match else op)
            peers.append(int(match[1]) if match else -1)
        return backends, ops, peers

    def _states(self, retired: Ints, is_gloo: Ints) -> Ints:
        """With nccl a call that is retired and not completed timed out; with gloo `retired` means completed."""
        of_text = np.array([int(_STATES.get(text, CallState.SCHEDULED)) for text in self._e.texts] or [0])
        state = of_text[self._e.strings["state"]]
        ended = np.where(is_gloo, int(CallState.COMPLETED), int(CallState.FAILED))
        return np.where(retired & (state != CallState.COMPLETED), ended, state)

    def _settled(
        self, state: Ints, is_p2p: Ints, retired: Ints, group_N: Ints, op_N: Ints, backends: Sequence[str]
    ) -> Ints:
        """Like `flight_recorder.settle`: what the last entry of a batch, and later completed calls, say of earlier ones."""
        e = self._e
        is_nccl = np.array([b == "nccl" for b in backends])[e.strings["profiling_name"]]
        open_N = is_nccl & (state == CallState.SCHEDULED) & ~retired
        marks = np.flatnonzero(is_nccl & (np.char.find(op_N.astype(str), "coalesced") >= 0))
        if len(marks):
            keys = np.stack([e.file, group_N, e.numbers["collective_seq_id"], e.numbers["p2p_seq_id"]])
            told = {tuple(keys[:, i].tolist()): int(state[i]) for i in marks.tolist()}
            for i in np.flatnonzero(open_N).tolist():
                if "coalesced" not in op_N[i]:
                    state[i] = told.get(tuple(keys[:, i].tolist()), state[i])
        of_group = e.file * (int(group_N.max(initial=0)) + 1) + group_N
        _, of_group = np.unique(of_group, return_inverse=True)
        last_done = np.full(int(of_group.max(initial=0)) + 1, -1)
        done = np.flatnonzero(is_nccl & ~is_p2p & (state == CallState.COMPLETED))
        np.maximum.at(last_done, of_group[done], done)
        passed = is_nccl & ~is_p2p & ~retired & (state == CallState.SCHEDULED) & (e.order < last_done[of_group])
        return np.where(passed, int(CallState.COMPLETED), state)

    def _groups(self, backends: Sequence[str]) -> tuple[list[ProcessGroup], Ints]:
        e, known = self._e, {}  # type: ignore[var-annotated]
        keys, first, inverse = np.unique(
            e.file * max(len(e.pairs), 1) + e.groups, return_index=True, return_inverse=True
        )
        numbers = []
        for row in first.tolist():
            name, desc = e.pairs[int(e.groups[row])]
            backend = backends[int(e.strings["profiling_name"][row])]
            told = self._tails[int(e.file[row])].head.groups.get(name)
            ranks = told.ranks if told else ()
            group = ProcessGroup(name, (told.desc if told else "") or desc, ranks, backend=backend)
            numbers.append(known.setdefault(group, len(known)))
        return list(known), np.array(numbers, dtype=np.int64)[inverse] if len(keys) else e.groups

    def _segment(self, name: str, interned: Interned, parse: object, default: object) -> Ints:
        number_N = self._e.segments[name]
        of_distinct = [interned(default)] * (len(self._e.distinct) + 1)
        for i in np.unique(number_N[number_N >= 0]).tolist():
            of_distinct[i] = interned(parse(*self._e.distinct[i]))  # type: ignore[operator]
        return np.array(of_distinct)[number_N]

    def _dtype(self, file: int, segment: bytes) -> str:
        """Distinct names joined; the segment holds gets of the file's memo."""
        names: dict[str, None] = {}
        at, strings = 2, self._tails[file].head.strings
        while segment[at : at + 1] != b"e":
            width = 1 if segment[at : at + 1] == b"h" else 4
            number = int.from_bytes(segment[at + 1 : at + 1 + width], "little")
            if number not in strings:
                self._e.ok[file] = False
            names[strings.get(number, "")] = None
            at += 1 + width
        return ",".join(names)

    def _peers(self, peer_N: Ints, groups: Sequence[ProcessGroup], group_N: Ints) -> Ints:
        """Global ranks; dumps name a peer by its number within the group."""
        found = np.full(len(peer_N), -1)
        rows = np.flatnonzero(peer_N >= 0)
        keys, inverse = np.unique(group_N[rows] * (1 << 31) + peer_N[rows], return_inverse=True)
        world = [global_rank(groups[key >> 31], key & 0x7FFFFFFF) for key in keys.tolist()]
        if len(rows):
            found[rows] = np.array(world)[inverse]
        return found

    def _threads(self, threads: Interned) -> Ints:
        names, numbers = self._e.strings["thread_name"], self._e.strings["thread_id"]
        both, inverse = np.unique((names + 1) * (len(self._e.texts) + 1) + numbers + 1, return_inverse=True)
        texts = ["", *self._e.texts]
        found = []
        for key in both.tolist():
            parts = (texts[key // (len(texts))], texts[key % (len(texts))])
            found.append(threads(" ".join(p for p in parts if p)))
        return np.array(found)[inverse] if found else names

    def _shard(
        self,
        columns: dict[str, Ints],
        groups: list[ProcessGroup],
        ops: tuple[str, ...],
        small: tuple[Interned, Interned, Interned],
        backends: Sequence[str],
    ) -> tuple[Shard, list[bool]]:
        e = self._e
        progress = self._progress(groups, columns["group"])
        self._mark_too_short(columns, progress)
        ok = e.ok.tolist()
        keep = e.ok[e.file]
        dumps, wrapped = {}, []
        last_ns = np.max([columns[n] for n in ("created_ns", "started_ns", "completed_ns")], axis=0)
        ends = np.cumsum([len(t.starts) - 1 for t in self._tails])
        for tail, good, end in zip(self._tails, ok, ends.tolist(), strict=True):
            if not good:
                continue
            begin = end - len(tail.starts) + 1
            rank = tail.file.rank
            wrapped.append(rank)
            dumps[rank] = RankDump(
                tail.file,
                str(tail.head.header["version"]),
                backends[int(e.strings["profiling_name"][end - 1])],
                int(columns["record_id"][end - 1]) + 1,
                True,
                int(columns["created_ns"][begin:end].min()),
                int(last_ns[begin:end].max()),
            )
        told = np.isin(progress["rank"], list(dumps))
        table = CollectiveTable(
            {name: columns[name][keep].astype(kind) for name, kind in CALL_COLUMNS.items()},
            groups=tuple(groups),
            ops=ops,
            sizes=tuple(small[0].numbers),
            dtypes=tuple(small[1].numbers),
            stacks=(),
            threads=tuple(small[2].numbers),
            wrapped_ranks=frozenset(wrapped),
            progress={name: column[told] for name, column in progress.items()},
        )
        return Shard(table, dumps), ok

    def _mark_too_short(self, columns: Mapping[str, Ints], progress: Mapping[str, Ints]) -> None:
        """A tail must hold all open calls of each group: it reaches back to a completed one, or the rank says how many."""
        e, ranks = self._e, columns["rank"]
        is_open = (columns["state"] != CallState.COMPLETED) & ~(columns["is_p2p"].astype(bool) & (columns["peer"] < 0))
        width = int(columns["group"].max(initial=0)) + 1
        of_group = ranks * width + columns["group"]
        with_open, counts = np.unique(of_group[is_open], return_counts=True)
        short = ~np.isin(with_open, of_group[columns["state"] == CallState.COMPLETED])
        told = {
            int(r) * width + int(g): enqueued - completed
            for r, g, enqueued, completed in zip(
                *(progress[n].tolist() for n in ("rank", "group", "enqueued", "completed")), strict=True
            )
            if enqueued >= 0
        }
        for key, count in zip(with_open[short].tolist(), counts[short].tolist(), strict=True):
            if told.get(key, count + 1) > count:
                e.ok[np.unique(e.file[of_group == key])] = False

    def _progress(self, groups: Sequence[ProcessGroup], group_N: Ints) -> dict[str, Ints]:
        """What `pg_status` says; which group its numbers mean only the entries tell."""
        e = self._e
        numbers = e.numbers["pg_id"]
        keys, first = np.unique(e.file * (1 << 32) + np.where(numbers < 0, (1 << 32) - 1, numbers), return_index=True)
        rows: dict[str, list[int]] = {name: [] for name in PROGRESS_COLUMNS}
        for key, row in zip(keys.tolist(), first.tolist(), strict=True):
            tail = self._tails[key >> 32]
            status = tail.head.header.get("pg_status")
            told = status.get(str(key & 0xFFFFFFFF)) if isinstance(status, dict) else None
            if not isinstance(told, dict):
                continue
            rows["rank"].append(tail.file.rank)
            rows["group"].append(int(group_N[row]))
            for name in ("enqueued", "started", "completed"):
                value = told.get(f"last_{name}_collective")
                rows[name].append(value if type(value) is int and -1 <= value < 1 << 62 else -1)
        return {name: np.array(rows[name], dtype=kind) for name, kind in PROGRESS_COLUMNS.items()}
