"""Raw columns of a batch -> columns of the table, with names, sizes and stacks numbered for a whole shard.

Legend of shapes: N entries of the batch that count, F dumps, S texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from unhang.model import CallState, Frame, ProcessGroup
from unhang.model.calls import CALL_COLUMNS
from unhang.numeric import Bytes, Ints, digest, distinct, np, npt, paired, random_words, strided
from unhang.read.dumps.columns import MISSING, Batch
from unhang.read.dumps.definitions import NAMELESS, Texts, text_table
from unhang.read.dumps.entries import STATES, BadEntry, CallStack, EntryParser
from unhang.read.dumps.head import completed_group
from unhang.read.dumps.layouts import EMPTY, TRUE, Got, Layout

TEXTS = ("profiling_name", "state", "group", "desc", "thread_name", "thread_id")
SPANS = ("frames", "input_sizes", "output_sizes")
Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"


class Numbering(dict[Any, int]):
    """Gives equal values equal small numbers."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


@dataclass
class Names:
    """The small tables of a shard."""

    texts: Texts = field(default_factory=Texts)
    ops: Numbering = field(default_factory=Numbering)
    groups: Numbering = field(default_factory=Numbering)
    dtypes: Numbering = field(default_factory=Numbering)
    threads: Numbering = field(default_factory=Numbering)
    sizes: Numbering = field(default_factory=Numbering)
    frames: Numbering = field(default_factory=Numbering)
    stacks: Numbering = field(default_factory=Numbering)
    parser: EntryParser = field(default_factory=EntryParser)
    _made: dict[tuple[str, str, str, int], tuple[ProcessGroup, object]] = field(default_factory=dict)
    _numbers: dict[int, tuple[int, object]] = field(default_factory=dict)

    def group(self, name: str, desc: str, backend: str, known: Mapping[str, ProcessGroup]) -> ProcessGroup:
        """One object for a group as the first call that names it and the dump's configuration say."""
        configured = known.get(name)
        key = (name, desc, backend, id(configured))
        if key not in self._made:
            self._made[key] = (
                completed_group(configured, name, desc, backend),
                configured,
            )  # kept, so that its id stays its own
        return self._made[key][0]

    def number(self, group: ProcessGroup) -> int:
        """The number of a group. Thousands of members are hashed once for each object, not once for each dump."""
        if id(group) not in self._numbers:
            self._numbers[id(group)] = self.groups[group], group
        return self._numbers[id(group)][0]

    def call_stacks(self) -> tuple[CallStack, ...]:
        """The stacks by their numbers."""
        values = self.texts.values_S
        frames = [Frame(values[file], line, values[name]) for name, file, line in self.frames]
        return tuple(CallStack(frames[i] for i in stack) for stack in self.stacks)


@dataclass
class Values:
    """Arrays `[K]` in the order in which the entries were asked for.

    `texts`: numbers of the memo, -1 for none. `spans`: digests of lists, 0 for those without members. `mixed_dtypes`: all
    dtypes of entries with several, by place.
    """

    texts: dict[str, Ints]
    flags: dict[str, npt.NDArray[np.int8]]
    spans: dict[str, npt.NDArray[np.uint64]]
    mixed_dtypes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def at(cls, batch: Batch, row_K: Ints) -> Values:
        """The values of these entries."""
        count = len(row_K)
        made = cls(
            {name: np.full(count, -1, np.int64) for name in (*TEXTS, "dtype", "others")},
            {name: np.full(count, MISSING, np.int8) for name in ("retired", "is_p2p")},
            {name: np.zeros(count, np.uint64) for name in SPANS},
        )
        for some, layout, raw in batch.by_layout(row_K):
            made._read(some, layout, raw)
        return made

    def _read(self, places: Ints, layout: Layout, raw: Bytes) -> None:
        """Those of entries of one layout."""
        for name, got in layout.texts.items():
            self.texts[name][places] = _gets(raw, got)
        for name, offset in layout.flags.items():
            self.flags[name][places] = raw[:, offset] == TRUE
        for name, (begin, end) in layout.spans.items():
            if end - begin > EMPTY:
                mask = np.zeros(raw.shape[1], np.uint8)
                mask[begin:end] = 0xFF
                self.spans[name][places] = digest(raw.view(np.uint64), mask) + np.uint64(2 * (end - begin)) | np.uint64(
                    1
                )
        if layout.dtypes:
            columns = np.stack([_gets(raw, got) for got in layout.dtypes], axis=1)
            self.texts["dtype"][places] = columns[:, 0]
            for i in np.flatnonzero((columns != columns[:, :1]).any(axis=1)).tolist():
                self.mixed_dtypes[int(places[i])] = tuple(columns[i].tolist())
        if layout.others:
            self.texts["others"][places] = np.maximum.reduce([_gets(raw, got) for got in layout.others])


def _gets(raw: Bytes, got: Got) -> npt.NDArray[Any]:
    return strided(raw, got.offset + 1, got.kind)


@dataclass
class _Columns:
    """Entries of a batch, column by column. `row_N`: their places in the batch."""

    batch: Batch
    names: Names
    row_N: Ints
    dump_N: Ints = field(init=False)
    columns: Columns = field(default_factory=dict)
    texts: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dump_N = self.batch.dump_N[self.row_N]

    def mark_irregular(self, rows: Ints) -> None:
        """Leaves the dumps of these rows to the slow way."""
        self.batch.irregular_F[self.dump_N[rows]] = True


class Rows(_Columns):
    """All entries."""

    def fill(self, frames: bool, is_whole: bool) -> None:
        """Computes all columns but those of groups. Of entries of a dump that are alike, only the first is looked at."""
        slot_N = self.batch.slot_N[self.row_N]
        salt_F = random_words(len(self.batch.heads))
        firsts, codes = distinct(self.batch.signature[slot_N] ^ salt_F[self.dump_N])
        alike = _Alike(self.batch, self.names, self.row_N[firsts])
        alike.fill(frames, is_whole)
        kinds = {name: CALL_COLUMNS.get(name, column.dtype) for name, column in alike.columns.items()}
        self.columns = {name: column.astype(kinds[name], copy=False)[codes] for name, column in alike.columns.items()}
        numbers = {name: column[slot_N] for name, column in self.batch.numbers.items()}
        completed_ns = np.where(self.columns.pop("is_of_the_dump"), 0, numbers["time_discovered_completed_ns"])
        seq, p2p_seq = numbers["collective_seq_id"], numbers["p2p_seq_id"]
        p2p_seq = np.where(p2p_seq == MISSING, seq, p2p_seq)
        self.columns |= {
            "collective_seq": seq,
            "p2p_seq": p2p_seq,
            "seq": np.where(self.columns["is_p2p"], p2p_seq, seq),
            "record_id": numbers["record_id"],
            "pg_id": numbers["pg_id"],
            "created_ns": numbers["time_created_ns"],
            "started_ns": numbers["time_discovered_started_ns"],
            "completed_ns": completed_ns,
            "timeout_ms": numbers["timeout_ms"],
            **{f"{name}_text": alike.texts[name][codes] for name in ("group", "desc", "backend")},
        }


class _Alike(_Columns):
    """The first of the entries of each dump that are alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._values = Values.at(self.batch, self.row_N)

    def mark_irregular_where(self, bad_N: npt.NDArray[np.bool_]) -> None:
        """Leaves the dumps of these rows to the slow way."""
        self.mark_irregular(np.flatnonzero(bad_N))

    def fill(self, frames: bool, is_whole: bool) -> None:
        """Computes what is not a number."""
        self._resolve_texts()
        backend_nccl = self._read_ops()
        flags = self._values.flags
        state = self._lookup("state", lambda text: int(STATES.get(text, CallState.SCHEDULED))).astype(np.int8)
        ended = (flags["retired"] == 1) & (state != CallState.COMPLETED)
        state[ended] = np.where(backend_nccl[ended], CallState.FAILED, CallState.COMPLETED)
        is_p2p = np.where(flags["is_p2p"] == MISSING, self.columns.pop("named_p2p"), flags["is_p2p"] == 1)
        self.columns |= {
            "is_p2p": is_p2p,
            "state": state,
            "nccl": backend_nccl,
            "is_of_the_dump": backend_nccl & (flags["retired"] == 0) & (state == CallState.COMPLETED),
            "dtype": self._dtypes(),
            "thread": self._threads(),
            "in_sizes": self._sizes("input_sizes"),
            "out_sizes": self._sizes("output_sizes"),
            "frames": self._stacks(frames, is_whole),
            "has_frames": self._values.spans["frames"] != 0,
        }

    def _resolve_texts(self) -> None:
        """Numbers of texts for what the entries get from the memos."""
        if self.batch.memos is not None:
            text_of, base_F = self.batch.memos.table()
            text_of[0] = self.names.texts[""]
        else:
            text_of, base_F = text_table([head.memo for head in self.batch.heads], self.names.texts)
        limit = self.batch.limit_N[self.row_N]
        base = base_F[self.dump_N]
        highest = self._values.texts["others"]
        for name in (*TEXTS, "dtype"):
            got = self._values.texts[name]
            np.maximum(highest, got, out=highest)
            place = np.where((got < 0) | (got >= limit), 0, base + got)
            self.texts[name] = text_of[place]
            self.mark_irregular_where(self.texts[name] < 0)
        self.mark_irregular_where(highest >= limit)
        for name in self.texts:
            np.maximum(self.texts[name], 0, out=self.texts[name])
        self._text_of, self._base_F = text_of, base_F

    def used(self, name: str) -> list[int]:
        """The numbers of the texts in a column."""
        present = np.zeros(len(self.names.texts.values_S), bool)
        present[self.texts[name]] = True
        return np.flatnonzero(present).tolist()

    def _lookup(self, name: str, number: Any) -> Ints:
        """A column of numbers, by a function of the text."""
        table = np.zeros(len(self.names.texts.values_S), np.int64)
        for s in self.used(name):
            table[s] = number(self.names.texts.values_S[s])
        return table[self.texts[name]]

    def _read_ops(self) -> npt.NDArray[np.bool_]:
        """Operation, peer, and whether the name means a point-to-point call; returns which calls are of nccl."""
        table = np.zeros((6, len(self.names.texts.values_S)), np.int32)
        for s in self.used("profiling_name"):
            try:
                backend, op, is_p2p, peer = self.names.parser._name({"profiling_name": self.names.texts.values_S[s]})
            except BadEntry:
                table[5, s] = 1
                continue
            table[:5, s] = self.names.ops[op], is_p2p, peer, self.names.texts[backend], "coalesced" in op
        found = table[:, self.texts["profiling_name"]]
        self.mark_irregular_where(found[5] == 1)
        self.columns |= {
            "op": found[0],
            "named_p2p": found[1] == 1,
            "peer_in_group": found[2],
            "is_batch": found[4] == 1,
        }
        self.texts["backend"] = found[3].astype(np.int64)
        is_nccl: npt.NDArray[np.bool_] = found[3] == self.names.texts["nccl"]
        return is_nccl

    def _dtypes(self) -> Ints:
        column = self._lookup("dtype", self.names.dtypes.__getitem__)
        for i, gets in self._values.mixed_dtypes.items():
            column[i] = self._mixed(i, gets)
        return column

    def _mixed(self, i: int, gets: Sequence[int]) -> int:
        """Several dtypes in one call."""
        row, dump = int(self.row_N[i]), int(self.dump_N[i])
        texts = (
            self._text_of[self._base_F[dump] + np.array(gets)].tolist() if max(gets) < self.batch.limit_N[row] else [-1]
        )
        if min(texts) < 0:
            self.batch.irregular_F[dump] = True
            return 0
        return self.names.dtypes[",".join(dict.fromkeys(self.names.texts.values_S[t] for t in texts))]

    def _threads(self) -> Ints:
        codes, pairs = paired(self.texts["thread_name"], self.texts["thread_id"])
        values = self.names.texts.values_S
        numbers = [self.names.threads[" ".join(p for p in (values[a], values[b]) if p)] for a, b in pairs]
        return np.array(numbers, np.int64)[codes]

    def _sizes(self, name: str) -> Ints:
        digest = self._values.spans[name]
        firsts, codes = distinct(digest)
        found = self.batch.sizes_at(name, self.row_N[firsts])
        return np.array([self.names.sizes[sizes] for sizes in found], np.int64)[codes]

    def _stacks(self, frames: bool, is_whole: bool) -> npt.NDArray[np.int32]:
        """Stacks by number. Where all of a dump was read, each frame must be one, though it be not asked for."""
        if not frames and not is_whole:
            return np.full(len(self.row_N), -1, np.int32)
        digest = self._values.spans["frames"]
        salt_F = random_words(len(self.batch.heads))
        firsts, codes = distinct(np.where(digest == 0, np.uint64(0), digest ^ salt_F[self.dump_N]))
        present = np.flatnonzero(digest[firsts])
        gets, sizes, order = self.batch.frame_gets(self.row_N[firsts[present]])
        present = present[order]
        owner = np.repeat(firsts[present], sizes)
        self._frame_of = self._frame_table(self._base_F)
        found = self._frames_at(gets, owner)
        self.mark_irregular(owner[found < 0])
        numbers = np.full(len(firsts), -1, np.int32)
        if frames:
            keys = self._frame_numbers()[found].tolist()
            cuts = np.cumsum([0, *sizes]).tolist()
            numbers[present] = [self.names.stacks[tuple(keys[a:b])] for a, b in pairwise(cuts)]
        return numbers[codes]

    def _frame_table(self, base_F: Ints) -> npt.NDArray[np.int32]:
        """Which frame has a number of a memo, laid out like the texts."""
        table = np.full(int(base_F[-1]), -1, np.int32)
        known = self.batch.defined
        named = np.flatnonzero((known.numbers < NAMELESS) & ~self.batch.irregular_F[known.dumps])
        table[base_F[known.dumps[named]] + known.numbers[named]] = named
        return table

    def _frames_at(self, gets: Ints, row: Ints) -> Ints:
        """Frames by number, -1 for what is none. Those that the pickle does not memoise are of one entry alone."""
        nameless = gets >= NAMELESS
        limit = self.batch.limit_N[self.row_N[row]]
        place = np.where(gets < limit, self._base_F[self.dump_N[row]] + gets, 0)
        found = np.where(gets < limit, self._frame_of[place], -1).astype(np.int64)
        own = nameless & self.batch.is_moved_N[self.row_N[row]]
        found[own] = gets[own] - NAMELESS
        return np.where(found < len(self.batch.defined.numbers), found, -1)

    def _frame_numbers(self) -> Ints:
        """The shard's numbers of the batch's frames."""
        frames = self.batch.defined.frames
        return np.array([*(self.names.frames[key] for key in zip(*frames.tolist(), strict=True)), -1], np.int64)
