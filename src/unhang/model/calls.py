"""All recorded calls of all ranks, columnar, and tables of different ranks as one. Never one Python object per call: jobs have 10^8 of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, cast

from unhang.model.evidence import ProcessGroup
from unhang.model.frames import Frame
from unhang.numeric import has_numpy, np, npt

Sizes = tuple[tuple[int, ...], ...]


class CallState(IntEnum):
    """How far a call got. gloo knows only SCHEDULED and COMPLETED (from its `retired` flag); FAILED: it raised."""

    SCHEDULED = 0
    STARTED = 1
    COMPLETED = 2
    FAILED = 3


CALL_COLUMNS: Mapping[str, str] = {
    "rank": "i4",  # global rank that issued the call
    "group": "i4",  # index into `groups`
    "seq": "i8",  # collective_seq_id, or p2p_seq_id where is_p2p
    "op": "i4",  # index into `ops`
    "in_sizes": "i4",  # index into `sizes`
    "out_sizes": "i4",
    "dtype": "i4",  # index into `dtypes` (all dtypes of inputs, joined)
    "state": "i1",  # CallState
    "is_p2p": "?",
    "peer": "i4",  # global rank of the other side of a point-to-point call, else -1
    "created_ns": "i8",  # wall clock
    "started_ns": "i8",  # 0 where unknown
    "completed_ns": "i8",  # 0 where unknown
    "timeout_ms": "i8",  # -1 where unknown
    "frames": "i4",  # index into `stacks`, -1 where not recorded
    "thread": "i4",  # index into `threads`
    "record_id": "i8",  # order of issue within the rank; not comparable between ranks
    "reduce_op": "i1",  # index into REDUCE_OPS, -1 where unknown: dumps of torch's flight recorder do not tell it
    "root": "i4",  # global rank of the root, -1 where there is none or it is unknown
    "awaited_ns": "i8",  # since when the program waits for what it issued, 0 where unknown: only our recorder tells it
}
# In the order of torch's enum.
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

_OF_A_CALL = [name for name in CALL_COLUMNS if name not in ("started_ns", "awaited_ns")]
_OURS = "/unhang/inside/recorder/"  # it stands between the program and the call, and says nothing of it
_STATES = list(CallState)

PROGRESS_COLUMNS: Mapping[str, str] = {
    "rank": "i4",
    "group": "i4",  # index into `groups`
    "enqueued": "i8",  # last sequence number that the rank says it enqueued, started, completed; -1 where unknown
    "started": "i8",
    "completed": "i8",
}


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One row of the table, made only for rows that are looked at."""

    row: int
    rank: int
    group: ProcessGroup
    seq: int
    op: str
    in_sizes: Sizes
    out_sizes: Sizes
    dtype: str
    state: CallState
    is_p2p: bool
    peer: int | None
    created_ns: int
    completed_ns: int | None
    timeout_ms: int | None
    frames: tuple[Frame, ...] | None
    thread: str
    record_id: int
    reduce_op: str = ""
    root: int | None = None

    def __str__(self) -> str:
        sizes = ", ".join("x".join(map(str, s)) or "scalar" for s in self.in_sizes)
        return f"{self.op}({sizes}{' ' + self.dtype if self.dtype else ''})"


class _NoRows(Mapping[str, "npt.NDArray[Any]"]):
    """Columns without rows, each made when it is asked for: a log alone is judged without numpy.

    Where that is not installed they have a length, and whoever would reckon with them asks for it first.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        kind = self._kinds[name]
        return np.zeros(0, dtype=kind) if has_numpy() else cast("npt.NDArray[Any]", ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def _rows_of(columns: Mapping[str, npt.NDArray[Any]]) -> int:
    return 0 if isinstance(columns, _NoRows) else len(columns["rank"])


def empty_progress() -> Mapping[str, npt.NDArray[Any]]:
    """Progress columns without rows."""
    return _NoRows(PROGRESS_COLUMNS)


@dataclass(frozen=True)
class CollectiveTable:
    """The columns, with the small tables that they index.

    `wrapped_ranks`: ranks whose oldest calls are not here (the ring buffer lost them, or only the tail was read), so that
    absence of an early call proves nothing. `active_ranks`: ranks whose dump holds only calls that have not completed.
    `progress`: what the ranks themselves say of each group (`pg_status`), columns of shape [P].
    """

    columns: Mapping[str, npt.NDArray[Any]]
    groups: tuple[ProcessGroup, ...] = ()
    ops: tuple[str, ...] = ()
    sizes: tuple[Sizes, ...] = ()
    dtypes: tuple[str, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()
    threads: tuple[str, ...] = ()
    wrapped_ranks: frozenset[int] = frozenset()
    active_ranks: frozenset[int] = frozenset()
    progress: Mapping[str, npt.NDArray[Any]] = field(default_factory=empty_progress)

    def __len__(self) -> int:
        return _rows_of(self.columns)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a call nor a word of a rank on its calls: nothing to reckon with."""
        return not len(self) and not _rows_of(self.progress)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of whom any call is here, sorted."""
        return tuple(different(self.columns["rank"]).tolist()) if len(self) else ()

    @property
    def progress_ranks(self) -> tuple[int, ...]:
        """The rank of each row of `progress`."""
        return tuple(self.progress["rank"].tolist()) if _rows_of(self.progress) else ()

    @classmethod
    def empty(cls, groups: Sequence[ProcessGroup] = ()) -> CollectiveTable:
        """A table without rows."""
        return cls(_NoRows(CALL_COLUMNS), groups=tuple(groups))

    def call(self, row: int) -> CollectiveCall:
        """Row `row` as an object."""
        return self._call(row, *[self.columns[name].item(row) for name in _OF_A_CALL])

    def calls(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> list[CollectiveCall]:
        """Rows as objects. Column by column that takes half the time of one after the other."""
        if not len(rows):
            return []
        at = np.asarray(rows, dtype=np.int64)
        return list(map(self._call, at.tolist(), *[self.columns[name][at].tolist() for name in _OF_A_CALL]))

    def _call(
        self, row: int, rank: int, group: int, seq: int, op: int, in_sizes: int, out_sizes: int, dtype: int, state: int,
        is_p2p: bool, peer: int, created_ns: int, completed_ns: int, timeout_ms: int, frames: int, thread: int, record_id: int,
        reduce_op: int, root: int,
    ) -> CollectiveCall:  # fmt: skip
        """An object from the values of its columns."""
        return CollectiveCall(
            row,
            rank,
            self.groups[group],
            seq,
            self.ops[op],
            self.sizes[in_sizes],
            self.sizes[out_sizes],
            self.dtypes[dtype],
            _STATES[state],
            is_p2p,
            peer if peer >= 0 else None,
            created_ns,
            completed_ns or None,
            timeout_ms if timeout_ms >= 0 else None,
            tuple(f for f in self.stacks[frames] if _OURS not in f.file) if frames >= 0 else None,
            self.threads[thread],
            record_id,
            REDUCE_OPS[reduce_op] if reduce_op >= 0 else "",
            root if root >= 0 else None,
        )

    def rows(self, **equal: int) -> npt.NDArray[np.int64]:
        """Row numbers where every named column has the given value, in the order of issue."""
        if not len(self):
            return self.columns["rank"]
        mask = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            mask &= self.columns[name] == value
        return np.flatnonzero(mask)

    def rank_rows(self, rank: int) -> slice:
        """The rows of one rank, which lie together in the order of issue."""
        return self._rows_of_rank.get(rank, slice(0, 0))

    @cached_property
    def _rows_of_rank(self) -> Mapping[int, slice]:
        if not len(self):
            return {}
        rank_N = self.columns["rank"]
        first = np.flatnonzero(np.diff(rank_N, prepend=-1))
        ends = [*first.tolist()[1:], len(rank_N)]
        return dict(zip(rank_N[first].tolist(), map(slice, first.tolist(), ends), strict=True))

    def calls_of(self, rank: int) -> Iterator[CollectiveCall]:
        """All calls of one rank, in the order of issue."""
        rows = self.rank_rows(rank)
        return iter(self.calls(range(rows.start, rows.stop)))


@dataclass
class Interned:
    """Gives equal values equal small numbers."""

    numbers: dict[Any, int] = field(default_factory=dict)

    def __call__(self, value: Any) -> int:
        """The number of a value."""
        return self.numbers.setdefault(value, len(self.numbers))


class TableBuilder:
    """Collects rows and yields a frozen CollectiveTable, sorted by rank and order of issue."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {name: [] for name in CALL_COLUMNS}
        self._groups: dict[str, tuple[int, ProcessGroup]] = {}
        self._ops, self._sizes, self._dtypes, self._stacks, self._threads = (Interned() for _ in range(5))
        self._wrapped: set[int] = set()

    def group(self, group: ProcessGroup) -> int:
        """Registers a group under its name and returns its index; the description that knows the ranks wins."""
        index, known = self._groups.get(group.name, (len(self._groups), group))
        self._groups[group.name] = (index, known if known.ranks else group)
        return index

    def mark_wrapped(self, rank: int) -> None:
        """Notes that the oldest calls of this rank were overwritten: their absence proves nothing."""
        self._wrapped.add(rank)

    def add(
        self,
        *,
        rank: int,
        group: int,
        seq: int,
        op: str,
        in_sizes: Sizes = (),
        out_sizes: Sizes = (),
        dtype: str = "",
        state: CallState = CallState.COMPLETED,
        is_p2p: bool = False,
        peer: int = -1,
        created_ns: int = 0,
        started_ns: int = 0,
        completed_ns: int = 0,
        timeout_ms: int = -1,
        frames: tuple[Frame, ...] | None = None,
        thread: str = "",
        record_id: int = 0,
        reduce_op: int = -1,
        root: int = -1,
        awaited_ns: int = 0,
    ) -> None:
        """Adds one row; `group` is an index returned by `group()`."""
        row = {
            "rank": rank,
            "group": group,
            "seq": seq,
            "op": self._ops(op),
            "in_sizes": self._sizes(in_sizes),
            "out_sizes": self._sizes(out_sizes),
            "dtype": self._dtypes(dtype),
            "state": int(state),
            "is_p2p": is_p2p,
            "peer": peer,
            "created_ns": created_ns,
            "started_ns": started_ns,
            "completed_ns": completed_ns,
            "timeout_ms": timeout_ms,
            "frames": -1 if frames is None else self._stacks(frames),
            "thread": self._threads(thread),
            "record_id": record_id,
            "reduce_op": reduce_op,
            "root": root,
            "awaited_ns": awaited_ns,
        }
        for name, value in row.items():
            self._rows[name].append(value)

    def build(self) -> CollectiveTable:
        """The frozen table."""
        columns: Mapping[str, npt.NDArray[Any]] = _NoRows(CALL_COLUMNS)
        if self._rows["rank"]:
            columns = {name: np.array(self._rows[name], dtype=kind) for name, kind in CALL_COLUMNS.items()}
            order = np.lexsort((columns["record_id"], columns["rank"]))
            columns = {name: array[order] for name, array in columns.items()}
        return CollectiveTable(
            columns=columns,
            groups=tuple(group for _, group in sorted(self._groups.values(), key=lambda pair: pair[0])),
            ops=tuple(self._ops.numbers),
            sizes=tuple(self._sizes.numbers),
            dtypes=tuple(self._dtypes.numbers),
            stacks=tuple(self._stacks.numbers),
            threads=tuple(self._threads.numbers),
            wrapped_ranks=frozenset(self._wrapped),
        )


# Which small table each column indexes.
_INDEXED = {
    "group": "groups",
    "op": "ops",
    "in_sizes": "sizes",
    "out_sizes": "sizes",
    "dtype": "dtypes",
    "frames": "stacks",
    "thread": "threads",
}


def different(*columns: npt.ArrayLike) -> npt.NDArray[Any]:
    """The values in these columns, each once, sorted. `np.unique` alone would import `numpy.ma`, 10 ms of a verdict."""
    return np.unique(np.concatenate(columns), return_counts=True)[0]


def join(tables: Sequence[CollectiveTable]) -> CollectiveTable:
    """All rows of all tables, by rank and order of issue; equal groups, sizes, stacks and names get one number.

    Associative, and the order of the tables changes only the numbering. No rank may be in two tables.
    """
    if len(tables) == 1:
        return tables[0]
    numbering = {name: _Numbering(tables, name) for name in ("groups", "ops", "sizes", "dtypes", "stacks", "threads")}
    columns = {
        name: _joined([t[name] for t in tables], kind, numbering.get(_INDEXED.get(name, "")))
        for name, kind in CALL_COLUMNS.items()
    }
    columns = _in_order(columns)
    progress = {
        name: _joined([t.progress[name] for t in tables], kind, numbering["groups"] if name == "group" else None)
        for name, kind in PROGRESS_COLUMNS.items()
    }
    return CollectiveTable(
        columns=columns,
        **{name: n.values for name, n in numbering.items()},
        wrapped_ranks=frozenset().union(*(t.wrapped_ranks for t in tables)),
        active_ranks=frozenset().union(*(t.active_ranks for t in tables)),
        progress=progress,
    )


def _in_order(columns: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """By rank and order of issue. The parts of a large job come in this order, and are not copied once more."""
    rank, record = columns["rank"], columns["record_id"]
    steps = np.diff(rank)
    if not ((steps < 0) | ((steps == 0) & (record[1:] < record[:-1]))).any():
        return columns
    order = np.lexsort((record, rank))
    return {name: column[order] for name, column in columns.items()}


class _Numbering:
    """One numbering of the values of a small table, and for each table what its numbers become."""

    def __init__(self, tables: Sequence[CollectiveTable], name: str) -> None:
        number = Interned()
        self.new = [np.array([*map(number, getattr(table, name)), -1], dtype=np.int32) for table in tables]
        self.values = tuple(number.numbers)


def _joined(parts: Sequence[npt.NDArray[Any]], kind: str, numbering: _Numbering | None) -> npt.NDArray[Any]:
    if numbering is not None:  # -1 means "none" and stays so: it takes the last place
        parts = [new[part] for new, part in zip(numbering.new, parts, strict=True)]
    return np.concatenate(parts).astype(kind, copy=False) if parts else np.zeros(0, dtype=kind)
