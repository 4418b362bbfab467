"""What the dumps of a batch give: the columns of their calls, their groups, and what the ranks say of those.

Legend of shapes: N calls, F dumps, K pairs of dump and group, numbered dump * groups + group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from unhang.model import CallState, ProcessGroup
from unhang.model.calls import CALL_COLUMNS
from unhang.numeric import np, npt
from unhang.read.dumps import DEFAULT_GROUP, DumpFile, RankDump
from unhang.read.dumps.columns import MISSING, Batch
from unhang.read.dumps.entries import infer_state_columns, of_transfers
from unhang.read.dumps.head import is_active_only, match_status
from unhang.read.dumps.rows import Columns, Names, Rows

Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass
class Part:
    """The calls of some dumps, numbered by the names of the shard. `progress`: rank, group, and three numbers each."""

    columns: Columns
    dumps: list[RankDump] = field(default_factory=list)
    progress: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    wrapped: set[int] = field(default_factory=set)
    active: set[int] = field(default_factory=set)


def table_columns(batch: Batch, names: Names, *, frames: bool, is_whole: bool) -> Columns:
    """Decodes a batch into columns, with the numbers of the dumps; those of dumps that need the slow way are left out."""
    batch.decode()
    rows = Rows(batch, names, np.flatnonzero(~batch.irregular_F[batch.dump_N]))
    if len(rows.row_N):
        rows.fill(frames, is_whole)
        rows.mark_irregular(np.flatnonzero((np.diff(rows.columns["record_id"]) < 0) & (np.diff(rows.dump_N) == 0)))
    kept = ~batch.irregular_F[rows.dump_N]
    if not kept.any():
        return {}
    columns = {**rows.columns, "dump": rows.dump_N}
    return columns if kept.all() else {name: column[kept] for name, column in columns.items()}


@dataclass
class BatchReading:
    """Reads one batch.

    `counts`: how many of the last calls of each dump count, enlarged where too few; None for all. `is_whole`: the
    dumps are there whole, not only head and tail. `short_F`: dumps of which more must be read.
    """

    batch: Batch
    files: Sequence[DumpFile]
    names: Names
    counts: Sequence[int | None]
    is_whole: bool
    short_F: npt.NDArray[np.bool_] = field(init=False)

    def read(self, columns: Columns) -> Part:
        """The calls of all dumps that are neither irregular nor short."""
        self.short_F = np.zeros(len(self.files), bool)
        if not columns:
            return Part({name: np.zeros(0, kind) for name, kind in CALL_COLUMNS.items()})
        return self._part(columns)

    def _part(self, columns: Columns) -> Part:
        groups = _Groups(columns, self.batch, self.names)
        keys = (groups.key_N, columns["collective_seq"], columns["p2p_seq"])
        batches = of_transfers(columns["nccl"] & columns["is_batch"], columns["is_p2p"], keys)
        columns["is_p2p"] |= batches
        columns["seq"] = np.where(batches, columns["p2p_seq"], columns["seq"])
        infer_state_columns(
            columns["state"],
            groups.key_N,
            columns["nccl"],
            columns["is_p2p"],
            columns["is_batch"],
            keys[1:],
        )
        shown = self._shown(columns, groups)
        columns["rank"] = np.array([f.rank for f in self.files], np.int32)[columns["dump"]]
        columns |= {name: np.full(len(columns["rank"]), -1) for name in ("reduce_op", "root")}  # only we know them
        columns["awaited_ns"] = np.zeros(len(columns["rank"]), np.int64)
        groups.number(columns, shown)
        shown &= ~self.batch.irregular_F[columns["dump"]]
        some = slice(None) if shown.all() else shown
        part = Part({name: columns[name][some].astype(kind, copy=False) for name, kind in CALL_COLUMNS.items()})
        if shown.any():
            self._describe(part, columns, shown, groups)
        return part

    def _shown(self, columns: Mapping[str, npt.NDArray[Any]], groups: _Groups) -> npt.NDArray[np.bool_]:
        """The calls of each dump that count: its tail, if that has a completed call of each group with an open one."""
        dump = columns["dump"]
        if self.is_whole and self.counts[0] is None:
            return np.ones(len(dump), bool)
        size = np.bincount(dump, minlength=len(self.files))
        ends = np.cumsum(size)
        from_end = ends[dump] - np.arange(len(dump))
        shown = np.zeros(len(dump), bool)
        undecided = np.ones(len(self.files), bool)
        for count in self.counts:
            tail = undecided[dump]
            if count is not None:
                tail &= from_end <= count
                undecided &= groups.lack_done(tail, columns) & ~(self.is_whole & (size <= count))
            else:
                undecided[:] = False
            shown |= tail & ~undecided[dump]
        if not self.is_whole:
            gaps = np.diff(columns["record_id"]) != 1
            undecided[dump[1:][gaps & (np.diff(dump) == 0)]] = True
            shown &= ~undecided[dump]
        self.short_F = undecided & ~self.batch.irregular_F
        return shown

    def _describe(
        self, part: Part, columns: Mapping[str, npt.NDArray[Any]], shown: npt.NDArray[np.bool_], groups: _Groups
    ) -> None:
        """What each dump is apart from its calls."""
        some = slice(None) if shown.all() else shown
        dump_N, has_frames = columns["dump"][some], columns["has_frames"][some]
        created, started, completed = (columns[name][some] for name in ("created_ns", "started_ns", "completed_ns"))
        cuts = _firsts(dump_N)
        latest = np.maximum.reduce([np.maximum.reduceat(column, cuts) for column in (created, started, completed)])
        if created.min() <= 0:
            created = np.where(created > 0, created, _NEVER)
        all_cuts = _firsts(columns["dump"])
        dump_F = columns["dump"][all_cuts]
        count_F, oldest_F, last_F = (np.zeros(len(self.files), np.int64) for _ in range(3))
        count_F[dump_F] = np.diff(all_cuts, append=len(columns["dump"]))
        oldest_F[dump_F] = columns["record_id"][all_cuts]
        last_F[dump_F] = columns["record_id"][all_cuts + count_F[dump_F] - 1]
        if self.batch.first_F is not None:
            oldest_F = self.batch.first_F
        done_F = np.zeros(len(self.files), bool)
        done_F[dump_F] = np.logical_or.reduceat(columns["state"] == CallState.COMPLETED, all_cuts)
        backends = _first_backends(columns, self.names, len(self.files))
        described = zip(
            dump_N[cuts].tolist(),
            np.minimum.reduceat(created, cuts).tolist(),
            latest.tolist(),
            np.logical_or.reduceat(has_frames, cuts).tolist(),
            np.diff(cuts, append=len(dump_N)).tolist(),
            strict=True,
        )
        for f, first_ns, last_ns, has_frames, count in described:
            head, file, oldest = self.batch.heads[f], self.files[f], int(oldest_F[f])
            entries = int(count_F[f]) if self.is_whole else int(last_F[f]) - oldest + 1
            first_ns = first_ns if first_ns < _NEVER else 0
            part.dumps.append(RankDump(file, head.version, backends[f], entries, has_frames, first_ns, last_ns))
            if oldest > 0 or entries > count:
                part.wrapped.add(file.rank)
            if is_active_only((oldest, int(last_F[f])), entries, bool(done_F[f]), head.status):
                part.active.add(file.rank)
            found = match_status(head.status, groups.names_F[f], head.groups, groups.named_F[f].__getitem__)
            part.progress += [
                (file.rank, self.names.number(group), *head.status[number]) for number, group in found.items()
            ]


def _firsts(dump_N: npt.NDArray[np.int64]) -> Ints:
    """The first row of each dump; the rows of each lie together."""
    return np.flatnonzero(np.append(True, dump_N[1:] != dump_N[:-1]))


_NEVER = 2**63 - 1


def _first_backends(columns: Mapping[str, npt.NDArray[Any]], names: Names, dumps: int) -> list[str]:
    """The backend of each dump's first call that names one."""
    backend, dump, none = columns["backend_text"], columns["dump"], names.texts[""]
    firsts = _firsts(dump)
    some = firsts if (backend[firsts] != none).all() else slice(None)
    backend, dump = backend[some], dump[some]
    named = np.flatnonzero(backend != none)[::-1]
    first = np.full(dumps, -1, np.int64)
    first[dump[named]] = backend[named]
    return [names.texts.values_S[s] if s >= 0 else "" for s in first.tolist()]


class _Groups:
    """The groups that the calls of each dump name."""

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]], batch: Batch, names: Names) -> None:
        self._batch, self._names = batch, names
        group = columns["group_text"]
        present = np.zeros(len(names.texts.values_S), np.int64)
        present[group] = 1
        self._texts = np.flatnonzero(present)
        present[self._texts] = np.arange(len(self._texts))
        count = len(self._texts)
        self.key_N: Ints = columns["dump"] * count + present[group]
        self._count, self.size = count, count * len(batch.heads)
        self.named_F: list[dict[str, ProcessGroup]] = [{} for _ in batch.heads]
        self.names_F: list[dict[str, str]] = [{} for _ in batch.heads]

    def lack_done(
        self, rows_N: npt.NDArray[np.bool_], columns: Mapping[str, npt.NDArray[Any]]
    ) -> npt.NDArray[np.bool_]:
        """Which dumps have, among these rows, an open call in a group without a completed one; of shape [F].

        A dump that has completed calls, and itself says that a group has no more open calls than these, lacks none there.
        """
        done = columns["state"] == CallState.COMPLETED
        open_K, done_K = (
            np.bincount(self.key_N[rows], minlength=self.size) for rows in (rows_N & ~done, rows_N & done)
        )
        lacks_K = (open_K > 0) & (done_K == 0)
        rows = np.flatnonzero(rows_N & ~done & lacks_K[self.key_N])
        transfers_K = np.bincount(self.key_N[rows[columns["is_p2p"][rows]]], minlength=self.size)
        any_done_F: npt.NDArray[np.bool_] = np.asarray(done_K.reshape(-1, self._count).any(axis=1))
        lasts = rows[::-1][np.unique(self.key_N[rows[::-1]], return_index=True)[1]]
        for row, key in zip(lasts.tolist(), self.key_N[lasts].tolist(), strict=True):
            dump = key // self._count
            enqueued, _, completed = self._batch.heads[dump].status.get(str(columns["pg_id"][row]), (-1, -1, -1))
            is_last = enqueued == columns["seq"][row] and enqueued - completed == open_K[key]
            if is_last and any_done_F[dump] and not transfers_K[key]:
                lacks_K[key] = False
        return np.asarray(lacks_K.reshape(-1, self._count).any(axis=1))

    def number(self, columns: Columns, shown: npt.NDArray[np.bool_]) -> None:
        """Adds the group's number and the peer's rank. Dumps whose groups have several ids become irregular."""
        first_K = np.full(self.size, -1, np.int64)
        # The last of equal places wins, hence the reverse; calls that are shown come before others.
        first_K[self.key_N[::-1]] = np.arange(len(shown))[::-1]
        if not shown.all():
            rows = np.flatnonzero(shown)[::-1]
            first_K[self.key_N[rows]] = rows
        pg_id = columns["pg_id"]
        self._batch.irregular_F[columns["dump"][pg_id != pg_id[first_K][self.key_N]]] = True
        shown = shown & ~self._batch.irregular_F[columns["dump"]]
        firsts = np.sort(first_K[first_K >= 0])
        values = self._names.texts.values_S
        number_K = np.full(len(first_K), -1, np.int32)
        groups_K: list[ProcessGroup | None] = [None] * len(first_K)
        fields = (
            columns[name][firsts].tolist() for name in ("dump", "group_text", "desc_text", "backend_text", "pg_id")
        )
        keys = self.key_N[firsts].tolist()
        for key, is_shown, dump, name, desc, backend, pg_id in zip(keys, shown[firsts].tolist(), *fields, strict=True):
            name = values[name]
            group = self._names.group(name, values[desc], values[backend], self._batch.heads[dump].groups)
            if is_shown:
                number_K[key] = self._names.number(group)
            groups_K[key] = self.named_F[dump][name] = group
            if pg_id != MISSING:
                self.names_F[dump].setdefault(str(pg_id), name)
        columns["group"] = number_K[self.key_N]
        columns["peer"] = self._peers(columns["peer_in_group"], groups_K)

    def _peers(self, peer_N: npt.NDArray[np.int32], groups_K: Sequence[ProcessGroup | None]) -> npt.NDArray[np.int32]:
        """Global ranks of the other sides; dumps name them by their numbers within the group."""
        made = np.full(len(peer_N), -1, np.int32)
        calls = np.flatnonzero(peer_N >= 0)
        if not len(calls):
            return made
        present_K = np.zeros(self.size, np.int64)
        present_K[self.key_N[calls]] = 1
        keys = np.flatnonzero(present_K)
        present_K[keys] = np.arange(len(keys))
        code = present_K[self.key_N[calls]]
        places: dict[int, tuple[int, int]] = {}
        ranks: list[int] = []
        for key in keys.tolist():
            group = groups_K[key]
            if id(group) not in places:
                places[id(group)] = len(ranks), len(group.ranks) if group is not None else 0
                ranks += group.ranks if group is not None else ()
        base_K, size_K = np.array([places[id(groups_K[key])] for key in keys.tolist()]).T
        numbers = peer_N[calls]
        inside = numbers < size_K[code]
        made[calls[inside]] = np.array([*ranks, -1], np.int32)[(base_K[code] + numbers)[inside]]
        is_world_K = np.array([_is_unknown_world(groups_K[key]) for key in keys.tolist()])
        made[calls[is_world_K[code]]] = numbers[is_world_K[code]]
        return made


def _is_unknown_world(group: ProcessGroup | None) -> bool:
    """Whether it is the default group, whose members' numbers are their ranks, though nobody names them."""
    return group is not None and not group.ranks and group.name == DEFAULT_GROUP
