"""All calls of all ranks as a Chrome trace, which Perfetto opens: a process per rank, a track per group.

Tables come one after another; the whole trace is never in memory. Times are whole microseconds: nobody sees less in a
trace, and each digit costs.

Legend of shapes: N slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from unhang.analyze.calls.positions import bare_op
from unhang.model import CallState, CollectiveTable, Finding, user_frames
from unhang.numeric import distinct, np, npt
from unhang.show.paper import printable
from unhang.show.slices import (
    DIRECTIONS,
    LANES,
    Drawn,
    Ints,
    Slices,
    channels,
    drawn,
    gzip_packer,
    longest_guess_ns,
    picked,
    rank_blocks,
)

_DAY_NS = 86_400_000_000_000
_MOST_FLOWS = 64
_MOST_MARKS = 1000
_PIECE = 1 << 20

_KIND_COLUMNS = ("op", "in_sizes", "out_sizes", "dtype", "frames", "state", "peer", "timeout_ms")


def write_trace(
    tables: Iterable[CollectiveTable], output: Path, *, findings: Sequence[Finding] = (), zero_ns: int | None = None
) -> None:
    """Writes the trace, whole or not at all; blocks for about a second per million calls.

    What `tables` raises is raised again after the calls of the tables before it were written.

    Args:
        tables: The calls, each rank in one table.
        output: Becomes a gzipped JSON file.
        findings: Their culprits are marked; of the first one the stuck collective is joined by arrows.
        zero_ns: Wall clock of the trace's time 0. By default the first call of all, or, where `tables` is an iterator
            and a later table may begin earlier, a day before the first call of its first table.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = output.with_name(f".{output.name}.tmp")
    problem: Exception | None = None
    if zero_ns is None and isinstance(tables, Sequence):
        zero_ns = min((t for table in tables if (t := _first_ns(table)) is not None), default=None)
    try:
        with unfinished.open("wb") as file:
            trace = _Trace(_Gzip(file), findings, zero_ns)
            source = iter(tables)
            while True:
                try:
                    table = next(source, None)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again below
                    problem = error
                    break
                if table is None:
                    break
                trace.add(table)
            trace.finish(problem)
        unfinished.replace(output)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    if problem is not None:
        raise problem


def _first_ns(table: CollectiveTable) -> int | None:
    created_N = table["created_ns"][table["created_ns"] > 0]
    return int(created_N.min()) if len(created_N) else None


class _Gzip:
    """A compressed list of events, each of which begins with a comma."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._packer, self._is_empty = file, gzip_packer(), True

    def open(self, head: bytes) -> None:
        """What stands before the events."""
        self._file.write(self._packer.compress(head))

    def write(self, events: bytes | memoryview) -> None:
        """Adds events."""
        view = memoryview(events)
        if self._is_empty and view:
            view, self._is_empty = view[1:], False
        for at in range(0, len(view), _PIECE):
            self._file.write(self._packer.compress(view[at : at + _PIECE]))

    def close(self, tail: bytes) -> None:
        """What stands after the events, and the end of the file."""
        self._file.write(self._packer.compress(tail) + self._packer.flush())


def _text(value: str, most: int = 300) -> str:
    return printable(value, most=most)


def _event(**fields: object) -> bytes:
    return b",\n" + msgspec.json.encode(fields)


@dataclass(frozen=True)
class _OpenCalls:
    """Open calls of one table, kept until the end of the trace is known."""

    slices: Slices
    groups: Sequence[tuple[str, tuple[int, ...]]]  # of each slice: name and ranks

    def members(self, group: tuple[str, tuple[int, ...]], seq: int) -> Iterator[tuple[int, int, int]]:
        """(rank, track, start) of the calls of one collective."""
        s = self.slices
        for i in np.flatnonzero(s.seq == seq).tolist():
            if self.groups[i] == group:
                yield int(s.rank[i]), int(s.track[i]), int(s.start[i])


class _Kinds:
    """The texts that calls of a table share, made when first needed."""

    def __init__(self, table: CollectiveTable) -> None:
        self._table = table
        self._heads: list[bytes] = []
        self._index: dict[tuple[int, ...], int] = {}
        self._places: dict[int, str] = {}

    def of(self, part: Drawn) -> Ints:
        """`[N]` the number of each row's text."""
        columns = [*(picked(self._table[name], part.rows) for name in _KIND_COLUMNS), part.is_guess]
        first, kind_N = distinct(_mixed(columns).astype(np.uint64))
        numbers = []
        for row in first.tolist():
            key = tuple(int(column[row]) for column in columns)
            number = self._index.get(key)
            if number is None:
                number = self._index[key] = len(self._heads)
                self._heads.append(self._head(*key))
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)[kind_N]

    @property
    def heads(self) -> Sequence[bytes]:
        """The texts; each ends where the sequence number follows."""
        return self._heads

    def _head(
        self, op: int, in_sizes: int, out_sizes: int, dtype: int, frames: int, state: int, peer: int, timeout_ms: int,
        is_guess: int,
    ) -> bytes:  # fmt: skip
        table = self._table
        is_open = state in (CallState.SCHEDULED, CallState.STARTED)
        args: dict[str, object] = {"sizes": f"{_sizes(table, in_sizes)} {_text(table.dtypes[dtype])}".strip()}
        if out_sizes != in_sizes:
            args["output_sizes"] = _sizes(table, out_sizes)
        if is_open:  # what most slices have in common is left out of them: it would be half of the file
            args |= {"op": _text(table.ops[op]), "state": CallState(state).name.lower()}
            if timeout_ms >= 0:
                args["timeout_ms"] = timeout_ms
        if peer >= 0:
            args["peer"] = peer
        if place := self._place(frames):
            args["at"] = place
        if is_guess:
            args["completed"] = "when is not recorded"
        name = _text(bare_op(table.ops[op]), 100) + (" (not completed)" if is_open else "")
        head = msgspec.json.encode({"ph": "X", "name": name, "args": args})
        return b",\n" + head[:-2] + b',"seq":'

    def _place(self, frames: int) -> str:
        """The innermost line of the user's in a stack, "" where there is none."""
        if frames not in self._places:
            user = user_frames(self._table.stacks[frames]) if frames >= 0 else ()
            self._places[frames] = _text(f"{user[0].file}:{user[0].line} in {user[0].function}") if user else ""
        return self._places[frames]


def _mixed(columns: Sequence[npt.NDArray[Any]]) -> Ints:
    """One number per row that is equal where all columns are."""
    key_N = np.zeros(len(columns[0]), dtype=np.int64)
    room = 1
    for column in columns:
        least, most = int(column.min(initial=0)), int(column.max(initial=0))
        if least == most:  # both are 0
            continue
        if most - least >= 1 << 31:
            column = np.unique(column, return_inverse=True)[1]
            least, most = 0, int(column.max(initial=0))
        span = most - least + 1
        if room * span >= 1 << 62:
            key_N = np.unique(key_N, return_inverse=True)[1].astype(np.int64)
            room = len(key_N) + 1
        key_N *= span
        key_N += column
        key_N -= least
        room *= span
    return key_N


def _sizes(table: CollectiveTable, index: int) -> str:
    shapes = table.sizes[index]
    text = ", ".join("x".join(map(str, s)) or "scalar" for s in shapes[:8])
    return text + (f" and {len(shapes) - 8} more" if len(shapes) > 8 else "")


@dataclass
class _Trace:
    """The trace as far as it is written."""

    out: _Gzip
    findings: Sequence[Finding]
    zero_ns: int | None
    _begin: int = 1 << 62
    _end: int = 0
    _open: list[_OpenCalls] = field(default_factory=list)
    _last: dict[int, int] = field(default_factory=dict)  # culprit -> its last event
    _untimed: int = 0

    def __post_init__(self) -> None:
        self._culprits = {r for f in self.findings for r in f.culprit_ranks}
        self.out.open(b'{"displayTimeUnit":"ms","traceEvents":[')

    def add(self, table: CollectiveTable) -> None:
        """Writes the calls of a table, but for the open ones."""
        first_ns = _first_ns(table)
        self._untimed += int((table["created_ns"] <= 0).sum())
        if first_ns is None:
            return
        if self.zero_ns is None:
            self.zero_ns = max(0, first_ns - _DAY_NS)
        channel_N, guess_ns, kinds = channels(table), longest_guess_ns(table), _Kinds(table)
        for rows in rank_blocks(table):
            if len(rows):
                self._add_block(table, drawn(table, rows, picked(channel_N, rows), guess_ns), kinds)

    def _add_block(self, table: CollectiveTable, part: Drawn, kinds: _Kinds) -> None:
        assert self.zero_ns is not None
        rank, seq = (picked(table[name], part.rows).astype(np.int64, copy=False) for name in ("rank", "seq"))
        start, end = (np.maximum(t - self.zero_ns, 0) for t in (part.start, part.end))
        queued = np.maximum(part.start - picked(table["created_ns"], part.rows), 0)
        rank, seq, kind = np.maximum(rank, 0), np.maximum(seq, 0), kinds.of(part)
        slices = Slices(rank, part.track, start, end, queued, seq, kind, kinds.heads)
        self._begin, self._end = min(self._begin, int(start.min())), max(self._end, int(end.max()))
        ranks, first = np.unique(rank, return_index=True)  # sorted, as the rows are
        for one, last in zip(ranks.tolist(), np.maximum.reduceat(end, first).tolist(), strict=True):
            if one in self._culprits:
                self._last[one] = last
        self._name(table, rank, part.track)
        for text in slices.texts(np.flatnonzero(~part.is_open)):
            self.out.write(text)
        if part.is_open.any():
            groups = [(table.groups[g].name, table.groups[g].ranks) for g in table["group"][part.rows[part.is_open]]]
            self._open.append(_OpenCalls(slices.only(part.is_open), groups))

    def _name(self, table: CollectiveTable, rank_N: Ints, track_N: Ints) -> None:
        """Writes the names of the processes and tracks of a block."""
        ranks = rank_N[np.flatnonzero(np.diff(rank_N, prepend=-1))].tolist()  # sorted, as the rows are
        texts = [self._process(rank) for rank in ranks]
        names: dict[int, str] = {}
        width = int(track_N.max(initial=0)) + 1
        pair_N = rank_N * width + track_N
        pairs = np.sort(pair_N[distinct(pair_N.astype(np.uint64))[0]])
        for rank, track in (divmod(pair, width) for pair in pairs.tolist()):
            if track not in names:
                names[track] = _track_name(table, track)
            about = {"pid": rank, "tid": track + 1}
            texts.append(_event(ph="M", name="thread_name", args={"name": names[track]}, **about))
            texts.append(_event(ph="M", name="thread_sort_index", args={"sort_index": track}, **about))
        self.out.write(b"".join(texts))

    @staticmethod
    def _process(rank: int) -> bytes:
        return _event(ph="M", pid=rank, name="process_name", args={"name": f"rank {rank}"}) + _event(
            ph="M", pid=rank, name="process_sort_index", args={"sort_index": rank}
        )

    def finish(self, problem: Exception | None) -> None:
        """Writes the open calls, which reach to the end of the trace, marks and arrows, and closes the file."""
        end = self._end + max(1_000_000, (self._end - self._begin) // 50)
        for kept in self._open:
            until = np.full(len(kept.groups), end, dtype=np.int64)
            for text in replace(kept.slices, end=until).texts(np.arange(len(until))):
                self.out.write(text)
        self.out.write(b"".join([*self._marks(), *self._arrows()]))
        about: dict[str, object] = {"zero_ns": self.zero_ns or 0, "calls_without_time": self._untimed}
        if problem is not None:
            about["incomplete"] = _text(str(problem) or type(problem).__name__)
        self.out.close(b'\n],"otherData":' + msgspec.json.encode(about) + b"}\n")

    def _marks(self) -> Iterator[bytes]:
        """An event at the last sign of life of each culprit."""
        marks = [(finding, rank) for finding in self.findings for rank in finding.culprit_ranks if rank >= 0]
        for finding, rank in marks[:_MOST_MARKS]:
            if rank not in self._last:
                yield self._process(rank)
            args = {"because": _text(finding.because, 2000), "cause": finding.cause, "confidence": finding.confidence}
            name = _text(f"culprit: {finding.title}")
            at = self._last.get(rank, self._end) // 1000
            yield _event(ph="i", s="p", cat="finding", pid=rank, tid=0, ts=at, name=name, args=args)

    def _arrows(self) -> Iterator[bytes]:
        """Joins the calls of the stuck collective, rank by rank."""
        wanted = self._stuck()
        if wanted is None:
            return
        ends = sorted(end for kept in self._open for end in kept.members(*wanted))[:_MOST_FLOWS]
        for i, (rank, track, start) in enumerate(ends if len(ends) > 1 else ()):
            phase = "s" if i == 0 else "f" if i == len(ends) - 1 else "t"
            about = {"cat": "stuck", "name": "waits in the same call", "id": 1, "bp": "e"}
            yield _event(ph=phase, pid=rank, tid=track + 1, ts=start // 1000, **about)

    def _stuck(self) -> tuple[tuple[str, tuple[int, ...]], int] | None:
        """Group and sequence number of what the first finding names, else of the oldest open call."""
        for finding in self.findings[:1]:
            name, seq = (finding.process_group or {}).get("pg_name"), (finding.collective or {}).get("seq")
            for kept in self._open:
                for i, group in enumerate(kept.groups):
                    if group[0] == name and kept.slices.seq[i] == seq:
                        return group, int(kept.slices.seq[i])
        oldest = min(self._open, key=lambda kept: int(kept.slices.start.min()), default=None)
        if oldest is None:
            return None
        i = int(oldest.slices.start.argmin())
        return oldest.groups[i], int(oldest.slices.seq[i])


def _track_name(table: CollectiveTable, track: int) -> str:
    channel, lane = divmod(track, LANES)
    group = table.groups[channel // len(DIRECTIONS)]
    parts = [str(group), f"({group.name})" if str(group) != f"group {group.name}" else ""]
    parts += [DIRECTIONS[channel % len(DIRECTIONS)], f"lane {lane + 1}" if lane else ""]
    return _text(" ".join(part for part in parts if part), 120)
