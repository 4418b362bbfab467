"""All that was read of one job, before it is put together as a Case."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unhang.errors import UnreadableInput
from unhang.model import LogEvent, LogLine, RankIdentity, ThreadStack, Unavailable
from unhang.read.dumps.shard import DumpFile
from unhang.read.fields import text
from unhang.read.files import read_object
from unhang.read.rank_folder import FOLDER_NAME, RankRecord, read_rank_folder

if TYPE_CHECKING:
    from unhang.read.logs.source import Tell
    from unhang.read.output_log import OutputLog
    from unhang.read.sniff import Kind

MAX_FILES = 50_000
MAX_DEPTH = 8
OWN_FILES = frozenset(("job.json", "verdict.json", "output.log", "launcher.json"))

T = TypeVar("T")


@dataclass
class Gathered:
    """Everything read so far. Nothing here raises for a file: what cannot be read is noted in `absent`."""

    job: dict[str, object] = field(default_factory=dict)
    verdict: dict[str, object] = field(default_factory=dict)
    launcher_stacks: tuple[ThreadStack, ...] = ()
    output_paths: list[tuple[Path, int | None]] = field(default_factory=list)
    attempts: dict[int, list[RankRecord]] = field(default_factory=dict)
    loose: dict[int, RankRecord] = field(default_factory=dict)
    absent: list[Unavailable] = field(default_factory=list)
    files_seen: int = 0
    dumps: list[DumpFile] = field(default_factory=list)
    tell: Tell | None = None

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Reads one thing; a failure is noted."""
        try:
            return read()
        except UnreadableInput as error:
            self.absent.append(Unavailable(what, str(error)))
            return None

    def add(self, path: Path) -> None:
        """Reads a run directory, a report folder, a rank's folder, or any folder that holds one of these."""
        if not path.is_dir():
            self._add_file(path)
        elif (path / "job.json").exists() or (path / "ranks").is_dir():
            self._add_run_directory(path)
        elif (path / "bundle").is_dir():
            self._add_run_directory(path / "bundle")
        elif FOLDER_NAME.match(path.name):
            self._add_rank_folder(path)
        else:
            self._add_loose_folder(path, MAX_DEPTH)

    def add_located(self, paths: Sequence[Path | str]) -> None:
        """Finds the dumps in folders and files outside of run directories; other files there are read as what they are."""
        from unhang.read.dumps.locate import locate  # a job's watcher never needs it

        located = locate(paths)
        self.dumps.extend(located.files)
        self.absent.extend(located.absent)
        for other in located.others[:MAX_FILES]:
            if isinstance(other, Path) or "://" not in other:
                self._add_file(Path(other))

    def _add_run_directory(self, folder: Path) -> None:
        for file, kept in (("job.json", self.job), ("verdict.json", self.verdict)):
            path = folder / file
            if path.exists() and not kept:
                kept.update(self.attempt(file, partial(read_object, path)) or {})
        launcher = folder / "launcher.json"
        if launcher.exists():
            from unhang.read.pyspy import read_pyspy

            self.launcher_stacks = self.attempt("stack of the launcher", lambda: read_pyspy(launcher)) or ()
        if (folder / "output.log").exists():
            self.output_paths.append((folder / "output.log", None))
        ranks = folder / "ranks"
        for rank_folder in sorted(ranks.iterdir()) if ranks.is_dir() else ():
            if rank_folder.is_dir():
                self._add_rank_folder(rank_folder)

    def _add_rank_folder(self, folder: Path) -> None:
        record = read_rank_folder(folder)
        if record is None:
            self.absent.append(
                Unavailable(f"folder {folder.name}", "neither its name nor identity.json tells the rank")
            )
        else:
            self.attempts.setdefault(record.rank, []).append(record)

    def _add_loose_folder(self, folder: Path, depth: int) -> None:
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self.absent.append(Unavailable(f"folder {folder}", error.strerror or str(error)))
            return
        for path in entries:
            if path.is_symlink() and path.is_dir():
                continue
            if path.is_dir():
                self._add_subfolder(path, depth)
            elif self.files_seen >= MAX_FILES:
                self.absent.append(Unavailable(f"files of {folder}", f"more than {MAX_FILES} files were given"))
                return
            elif path.is_file():
                self._add_file(path)

    def _add_subfolder(self, path: Path, depth: int) -> None:
        if depth <= 0:
            self.absent.append(Unavailable(f"folder {path}", f"it lies more than {MAX_DEPTH} folders deep"))
        elif (path / "ranks").is_dir() or FOLDER_NAME.match(path.name) or (path / "bundle").is_dir():
            self.add(path)
        else:
            self._add_loose_folder(path, depth - 1)

    def _add_file(self, path: Path) -> None:
        from unhang.read.sniff import Kind, kind_of, rank_from_name, rank_of_log  # a folder of dumps never needs it

        self.files_seen += 1
        kind = self.attempt(str(path), lambda: kind_of(path))
        if kind is None:
            return
        rank = rank_from_name(path)
        if kind is Kind.OUTPUT:
            self.output_paths.append((path, rank_of_log(path) if path.name not in OWN_FILES else None))
        elif kind is Kind.OTHER:
            self.absent.append(Unavailable(str(path), "its format is not known to unhang"))
        elif rank is None:
            reason = f"the {kind.value}'s name does not tell the rank; name it like trace_rank_3"
            self.absent.append(Unavailable(str(path), reason))
        else:
            self._add_rank_file(path, kind, self.loose.setdefault(rank, RankRecord(RankIdentity(rank))))

    def _add_rank_file(self, path: Path, kind: Kind, record: RankRecord) -> None:
        from unhang.read.elastic_error import read_elastic_error
        from unhang.read.faulthandler_text import read_faulthandler
        from unhang.read.page import read_page
        from unhang.read.pyspy import read_pyspy
        from unhang.read.sniff import Kind

        if kind is Kind.DUMP:
            record.dump_paths.append(path)
        elif kind is Kind.STACKS:
            record.stacks = record.attempt(path.name, lambda: read_pyspy(path)) or record.stacks
        elif kind is Kind.FAULTS:
            record.fault_dumps = record.attempt(path.name, lambda: read_faulthandler(path)) or record.fault_dumps
        elif kind is Kind.PAGE:
            record.page = record.attempt(path.name, lambda: read_page(path)) or record.page
        else:
            record.error = record.attempt(path.name, lambda: read_elastic_error(path)) or record.error

    def chosen(self) -> dict[int, RankRecord]:
        """One process per rank: the last attempt. Loose files fill in ranks that no folder describes."""
        found = {}
        for rank, records in self.attempts.items():
            records.sort(key=lambda r: (r.identity.restart, r.identity.started_ns, r.path))
            found[rank] = records[-1]
            for old in records[:-1]:
                is_same = old.identity == records[-1].identity
                reason = "it was given twice" if is_same else f"earlier attempt (restart {old.identity.restart})"
                self.absent.append(Unavailable(f"process {old.identity.pid} of rank {rank}", reason))
        for rank, record in self.loose.items():
            known = found.setdefault(rank, record)
            if known is not record:
                _fill(known, record)
        return dict(sorted(found.items()))

    def outputs(self, records: Mapping[int, RankRecord]) -> list[OutputLog]:
        """All outputs, read last because the processes' numbers tell the ranks in some of them."""
        if not self.output_paths:
            return []
        from unhang.read.logs.source import read_outputs  # most folders of dumps hold no log

        ranks_by_pid = {record.identity.pid: rank for rank, record in records.items() if record.identity.pid}
        logs = []
        for path, log in read_outputs(self.output_paths, ranks_by_pid, self.tell):
            if isinstance(log, UnreadableInput):
                self.absent.append(Unavailable("output", str(log)))
                continue
            logs.append(log)
            if log.omitted_lines:
                reason = "only lines that speak of trouble and the last ones are kept"
                self.absent.append(Unavailable(f"{log.omitted_lines} lines of {path.name}", reason))
        return logs

    def absences_of_job(self) -> list[Unavailable]:
        """What the supervisor or the agent noted that they could not do."""
        listed = self.job.get("absent")
        fields = [f for f in listed if isinstance(f, dict)] if isinstance(listed, list) else []
        return [Unavailable(text(f, "what", "something"), text(f, "reason")) for f in fields]


def _fill(known: RankRecord, loose: RankRecord) -> None:
    known.dump_paths = known.dump_paths or loose.dump_paths
    known.stacks = known.stacks or loose.stacks
    known.fault_dumps = known.fault_dumps or loose.fault_dumps
    known.error = known.error or loose.error
    known.page = known.page or loose.page
    known.absent.extend(loose.absent)


def events_in(lines: Sequence[LogLine]) -> tuple[LogEvent, ...]:
    """What the lines of all outputs tell."""
    if not lines:
        return ()
    from unhang.read.logs.events import events_of

    return events_of(lines)


def holds_run_directory(path: Path, depth: int = 4) -> bool:
    """Whether a folder is, or holds, what `unhang run` or `unhang bundle` wrote."""
    if not path.is_dir():
        return False
    if FOLDER_NAME.match(path.name) or any((path / name).exists() for name in ("job.json", "ranks", "bundle")):
        return True
    if depth <= 0:
        return False
    try:
        with os.scandir(path) as entries:
            folders = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return False
    return any(holds_run_directory(folder, depth - 1) for folder in folders)
