"""The dumps of a job, read as far as the question needs: first the tail of each, then all of the few that matter; and kept for the next look.

An entry is a head of JSON and the columns as they are in memory, with a checksum: reading it runs no code of it. It is
used only for exactly the same files and options, by the user who wrote it; what is damaged counts as not there.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from unhang import __version__
from unhang.model import CollectiveTable, Frame, ProcessGroup, Unavailable
from unhang.model.calls import CALL_COLUMNS, PROGRESS_COLUMNS, Sizes
from unhang.numeric import np, npt
from unhang.read.dumps import DumpFile, RankDump, Shard, complete_batches, merge, stale_ranks, unify_groups, with_world
from unhang.read.dumps.engine import MOST_FILES, Engine, LocalEngine, Task, run_all

TAIL, TAILS_AT_ONCE = 32, 512
TAILS_OF_ONE, BYTES_OF_ONE = 1024, 24 << 20  # what one process alone reads
WHOLE_BYTES = 24 << 20
_EARLIER_NS = 86_400_000_000_000  # only tails were seen

Progress = Callable[[int, int], None]


class DumpReader:
    """Reads the dumps of one job, one file per rank.

    `given`: what is known of them from elsewhere, and stands for what would be read; None where that is nothing.
    """

    def __init__(
        self,
        files: Sequence[DumpFile],
        engine: Engine | None = None,
        progress: Progress | None = None,
        use_cache: bool = True,
    ) -> None:
        self.files = tuple(files)
        self._engine, self._progress, self._use_cache = engine, progress, use_cache
        self._seen = Shard()
        self.given: Shard | None = None
        self.is_whole = sum(f.size for f in files) <= WHOLE_BYTES

    def look(self) -> Shard:
        """All calls with their stacks where that is little, else the last calls of each rank without stacks."""
        if self.given is not None:
            self._seen = self.given
        elif self.is_whole:
            self._seen = self._read(self.files, None, True)
        else:
            self._seen = self._read(self.files, TAIL, False)
        return self._consistent(self._seen)

    def closer(self, ranks: Collection[int]) -> Shard:
        """What was seen, with all calls of these ranks and their stacks."""
        wanted = [f for f in self.files if f.rank in ranks]
        if wanted and not self.is_whole:
            self._seen = merge([_without(self._seen, {f.rank for f in wanted}), self._read(wanted, None, True)])
        return self._consistent(self._seen)

    def everything(self) -> Shard:
        """All calls of all ranks, without stacks."""
        return self._consistent(self.given or self._read(self.files, None, False))

    def run(self, task: Task, files: Sequence[DumpFile]) -> Shard:
        """What a task gives on files, run where these dumps are read."""
        return run_all(self._engine_for(files, None), task, files, self._progress)

    @property
    def seen(self) -> Mapping[int, RankDump]:
        """The dumps that could be read."""
        return self._seen.dumps

    @property
    def first_ns(self) -> int:
        """A time before every call."""
        return min((d.first_ns for d in self.seen.values() if d.first_ns), default=0) - _EARLIER_NS

    def in_parts(self, frames: bool) -> Iterator[Shard]:
        """All calls, a bounded number of ranks at a time."""
        from unhang.read.dumps.decode import decode_shard

        task = partial(decode_shard, last=None, frames=frames)
        for shard in self._engine_for(self.files, None).run(task, self.files, self._progress):
            yield self._consistent(shard)

    def _consistent(self, shard: Shard) -> Shard:
        """With one number for each group, and without what is of an earlier run."""
        stale = stale_ranks(shard)
        if stale:
            reason = "its calls end before those of the other ranks begin: it is from an earlier run"
            notes = tuple(Unavailable(f"dump of rank {rank}", reason) for rank in stale)
            shard = replace(_without(shard, stale), absent=(*shard.absent, *notes))
        table = with_world(unify_groups(shard.table), {f.rank for f in self.files})
        return replace(shard, table=complete_batches(table))

    def _read(self, files: Sequence[DumpFile], last: int | None, frames: bool) -> Shard:
        from unhang.read.dumps.decode import decode_shard

        entry = CacheEntry.of(files, last=last, frames=frames) if self._use_cache else None
        kept = entry.load() if entry is not None else None
        if kept is not None:
            return kept
        most_files = MOST_FILES if last is None else TAILS_AT_ONCE
        task = partial(decode_shard, last=last, frames=frames)
        shard = run_all(self._engine_for(files, last), task, files, self._progress, most_files)
        if entry is not None:
            entry.save(shard)
        return shard

    def _engine_for(self, files: Sequence[DumpFile], last: int | None) -> Engine:
        """The engine that was given, or processes of this machine: one alone where a second costs more than it does."""
        if self._engine is not None:
            return self._engine
        is_known = all(f.size for f in files)
        are_few = len(files) <= TAILS_OF_ONE
        is_little = are_few if last is not None else is_known and sum(f.size for f in files) <= BYTES_OF_ONE
        return LocalEngine(1 if is_little else None)


def _without(shard: Shard, ranks: Collection[int]) -> Shard:
    table = shard.table
    kept, kept_progress = (~np.isin(part["rank"], list(ranks)) for part in (table.columns, table.progress))
    return Shard(
        replace(
            table,
            columns={name: column[kept] for name, column in table.columns.items()},
            progress={name: column[kept_progress] for name, column in table.progress.items()},
            wrapped_ranks=table.wrapped_ranks - set(ranks),
            active_ranks=table.active_ranks - set(ranks),
        ),
        {rank: dump for rank, dump in shard.dumps.items() if rank not in ranks},
        shard.absent,
    )


FOLDER = ".unhang-cache"
MOST_ENTRIES = 4
MOST_BYTES = 2 << 30
SETTLED_S = 2.0  # a file changed later than this may change again without a newer modification time
_FORMAT = 2
_MAGIC = b"unhang\0\2"
_SUFFIX = ".dumps"
_COLUMNS = (*CALL_COLUMNS.items(), *PROGRESS_COLUMNS.items())


class _Head(msgspec.Struct):
    """All but the columns. A frame is (file, line, function), a stack the numbers of its frames, innermost first."""

    key: str
    rows: int
    progress_rows: int
    groups: tuple[ProcessGroup, ...]
    ops: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    dtypes: tuple[str, ...]
    threads: tuple[str, ...]
    frames: tuple[tuple[str, int, str], ...]
    stacks: tuple[tuple[int, ...], ...]
    wrapped_ranks: frozenset[int]
    active_ranks: frozenset[int]
    dumps: tuple[tuple[int, str, str, int, bool, int, int], ...]
    absent: tuple[Unavailable, ...]


@dataclass(frozen=True)
class CacheEntry:
    """Where the shard of exactly these files, decoded in exactly this way, is or would be kept.

    `key`: all that it depends on. It is in the entry too, so that a checksum suffices for the name.
    """

    files: Sequence[DumpFile]
    key: str
    name: str
    folders: tuple[Path, ...]
    is_settled: bool

    @classmethod
    def of(cls, files: Sequence[DumpFile], *, last: int | None, frames: bool) -> CacheEntry | None:
        """The entry for the files as they are now, so ask before they are read; None where there can be none."""
        status: dict[str, os.stat_result] = {}
        try:
            for file in files:
                if file.path not in status:
                    status[file.path] = os.stat(file.path)
        except (OSError, ValueError):  # it is gone, or no local file
            return None
        if not status:
            return None
        told = {path: (s.st_size, s.st_mtime_ns, s.st_ino, s.st_dev) for path, s in status.items()}
        described = [(f.rank, os.fsencode(f.path), os.fsencode(f.member), *told[f.path]) for f in files]
        key = ascii((_FORMAT, __version__, last, frames, described))
        newest = max(s.st_mtime_ns for s in status.values())
        is_settled = time.time_ns() - newest > SETTLED_S * 1e9
        name = f"{zlib.crc32(key.encode()):08x}-{len(key):x}{_SUFFIX}"
        return cls(files, key, name, _folders(list(status)), is_settled)

    def load(self) -> Shard | None:
        """The shard, if it is there and whole."""
        for folder in self.folders:
            try:
                if _is_own_folder(folder) and (data := _read(folder / self.name)) is not None:
                    return _unpack(data, self.key, self.files)
            except (OSError, ValueError, KeyError, IndexError, msgspec.MsgspecError):
                continue
        return None

    def save(self, shard: Shard) -> bool:
        """Keeps the shard, whole or not at all; says whether it is kept.

        One that lacks a rank is not kept: the reason may pass, as a time limit does.
        """
        if not self.is_settled or len(shard.dumps) < len(self.files):
            return False
        try:
            parts = _pack(shard, self.key)
        except (ValueError, OverflowError, TypeError):  # text or numbers that JSON has no place for
            return False
        if sum(len(part) for part in parts) > MOST_BYTES:
            return False
        for folder in self.folders:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _is_own_folder(folder):
                    _write(folder / self.name, parts)
                    _prune(folder)
                    return True
            except OSError:
                continue
        return False


def _folders(paths: Sequence[str]) -> tuple[Path, ...]:
    """Beside the dumps, and in the user's own cache."""
    beside = Path(os.path.commonpath([os.path.abspath(folder) for folder in {*map(os.path.dirname, paths)}]))
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    own = Path(xdg) if os.path.isabs(xdg) else Path(os.path.expanduser("~")) / ".cache"
    folders = [beside / FOLDER] if beside != Path(beside.anchor) else []
    return (*folders, own / "unhang") if own.is_absolute() else tuple(folders)


def _is_own_folder(folder: Path) -> bool:
    """In a folder like /tmp, others could have put a link or a folder of theirs there."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _read(path: Path) -> bytearray | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as f:
        status = os.fstat(descriptor)
        own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not own or not len(_MAGIC) < status.st_size <= MOST_BYTES:
            return None
        data = bytearray(status.st_size)
        return data if f.readinto(data) == len(data) and data.startswith(_MAGIC) else None


def _write(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    temporary = path.with_name(f"{path.stem}-{os.getpid():x}-{time.time_ns():x}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as f:
            f.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _prune(folder: Path) -> None:
    """Removes all but the newest entries, and what a killed process left half written."""
    found = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    total = kept = 0
    for status, path in sorted(found, key=lambda pair: pair[0].st_mtime_ns, reverse=True):
        if path.endswith(_SUFFIX):
            total, kept = total + status.st_size, kept + 1
            if kept > MOST_ENTRIES or total > MOST_BYTES:
                os.unlink(path)
        elif path.endswith(".tmp") and time.time() - status.st_mtime > 3600:
            os.unlink(path)


def _pack(shard: Shard, key: str) -> list[bytes | memoryview]:
    table = shard.table
    frames = {frame: number for number, frame in enumerate(dict.fromkeys(chain.from_iterable(table.stacks)))}
    head = _Head(
        key=key,
        rows=len(table),
        progress_rows=len(table.progress["rank"]),
        **{name: getattr(table, name) for name in ("groups", "ops", "sizes", "dtypes", "threads")},
        frames=tuple((f.file, f.line, f.function) for f in frames),
        stacks=tuple(tuple(frames[frame] for frame in stack) for stack in table.stacks),
        wrapped_ranks=table.wrapped_ranks,
        active_ranks=table.active_ranks,
        dumps=tuple(
            (rank, d.version, d.backend, d.entries, d.has_frames, d.first_ns, d.last_ns)
            for rank, d in shard.dumps.items()
        ),
        absent=shard.absent,
    )
    text = msgspec.json.encode(head)
    columns = [*(table[name] for name in CALL_COLUMNS), *(table.progress[name] for name in PROGRESS_COLUMNS)]
    named = zip(columns, _COLUMNS, strict=True)
    parts: list[bytes | memoryview] = [text]
    parts += [np.ascontiguousarray(column, dtype=kind).view(np.uint8).data for column, (_, kind) in named]
    check = 0
    for part in parts:
        check = zlib.crc32(part, check)
    return [_MAGIC, check.to_bytes(8, "little"), len(text).to_bytes(8, "little"), *parts]


def _unpack(data: bytearray, key: str, files: Sequence[DumpFile]) -> Shard | None:
    view = memoryview(data)[len(_MAGIC) :]
    check, length = (int.from_bytes(view[i : i + 8], "little") for i in (0, 8))
    view = view[16:]
    if zlib.crc32(view) != check:
        return None
    head = msgspec.json.decode(view[:length], type=_Head)
    if head.key != key:
        return None
    arrays: list[npt.NDArray[np.generic]] = []
    place = length
    for i, (_, kind) in enumerate(_COLUMNS):
        rows = head.rows if i < len(CALL_COLUMNS) else head.progress_rows
        arrays.append(np.frombuffer(view, dtype=kind, count=rows, offset=place))
        place += arrays[-1].nbytes
    frames = [Frame(*frame) for frame in head.frames]
    by_rank = {file.rank: file for file in files}
    return Shard(
        CollectiveTable(
            columns=dict(zip(CALL_COLUMNS, arrays, strict=False)),
            **{name: getattr(head, name) for name in ("groups", "ops", "sizes", "dtypes", "threads")},
            stacks=tuple(tuple(frames[number] for number in stack) for stack in head.stacks),
            wrapped_ranks=head.wrapped_ranks,
            active_ranks=head.active_ranks,
            progress=dict(zip(PROGRESS_COLUMNS, arrays[len(CALL_COLUMNS) :], strict=True)),
        ),
        {described[0]: RankDump(by_rank[described[0]], *described[1:]) for described in head.dumps},
        head.absent,
    )
