"""All files of one job, wherever they lie, before they are put together as a Case; and which ranks stand for all, where not all were read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from unhang.errors import UnreadableInput
from unhang.model import Course, RankIdentity, ThreadStack, Unavailable
from unhang.read.dumps import DumpFile
from unhang.read.files import read_object, text, texts, whole, wholes
from unhang.read.rank_evidence import Processes, attempts_of, began_ns, outputs_of
from unhang.read.rank_folder import FOLDER_NAME, RankRecord, read_rank_folder
from unhang.read.runs import COURSE, joined_course, joined_job, joined_verdict, ran_together, read_course, shift_clock

if TYPE_CHECKING:
    from unhang.read.output_log import OutputLog
    from unhang.read.sniff import Kind

MAX_FILES = 50_000
MAX_DEPTH = 8
_OF_A_RUN = ("job.json", "verdict.json")
OWN_FILES = frozenset((*_OF_A_RUN, "output.log", "launcher.json"))

T = TypeVar("T")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Gathered:
    """All that was read of one job. Nothing is weighed yet.

    Args:
        job: job.json; of several runs of one job joined. `verdict`: the same of verdict.json.
        runs: job.json of each run directory, by folder.
        records: what its own files say of each rank, in the last attempt.
        has_processes: whether any of them has a folder of its own, as the recorder leaves it.
        logs: the outputs, ours first.
        dumps: those that lie outside of the ranks' folders, unread.
        absent: what could not be read, and why.
        earlier: the same of each attempt before the last, where the ranks were started again; oldest first.
        course: how the job ran while it was watched.
        alike: which ranks stand for all, where not all were read.
    """

    job: Mapping[str, object] = field(default_factory=dict)
    verdict: Mapping[str, object] = field(default_factory=dict)
    runs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    launcher_stacks: tuple[ThreadStack, ...] = ()
    records: Mapping[int, RankRecord] = field(default_factory=dict)
    has_processes: bool = False
    logs: tuple[OutputLog, ...] = ()
    dumps: tuple[DumpFile, ...] = ()
    absent: tuple[Unavailable, ...] = ()
    earlier: tuple[Gathered, ...] = ()
    course: Course | None = None
    alike: Alike | None = None


def gather(paths: Sequence[Path | str], on_progress: Progress | None = None) -> Gathered:
    """Reads all files at some paths but the dumps. Nothing here raises for a file: what cannot be read is noted in `absent`.

    `on_progress`: called while logs are read.
    """
    walk = _Walk()
    elsewhere = []
    for path in paths:
        if isinstance(path, Path) and holds_run_directory(path):
            walk.add(path)
        else:
            elsewhere.append(path)
    if elsewhere:
        walk.add_located(elsewhere)
    attempts = walk.chosen()
    own, others = walk.outputs(attempts, on_progress)
    logs = outputs_of(own, attempts) if len(attempts) > 1 else [tuple(log for _, log in own)]
    last = Gathered(
        walk.job,
        walk.verdict,
        walk.runs,
        walk.launcher_stacks,
        attempts[-1],
        bool(walk.processes),
        (*logs[-1], *others),
        tuple(walk.dumps),
        tuple(walk.absent),
        course=walk.course,
        alike=walk.alike,
    )
    return _with_earlier(last, attempts, logs) if len(attempts) > 1 else last


def _with_earlier(last: Gathered, attempts: Sequence[Processes], logs: Sequence[tuple[OutputLog, ...]]) -> Gathered:
    """With what there is of the attempts before. A hang was seen in the attempt that ran at that moment."""
    seen_ns = whole(last.verdict, "detected_ns") or 0
    starts = [began_ns(attempt) for attempt in attempts]
    hung = max((i for i, began in enumerate(starts) if began <= seen_ns), default=0)
    command = {name: last.job[name] for name in ("command",) if name in last.job}
    earlier = tuple(
        Gathered(
            {**command, "started_ns": starts[i]},
            last.verdict if i == hung else {},
            last.runs,
            records=records,
            has_processes=True,
            logs=logs[i],
        )
        for i, records in enumerate(attempts[:-1])
    )
    return replace(last, verdict=last.verdict if hung == len(attempts) - 1 else {}, earlier=earlier)


class _Walk:
    """Goes through folders and files, and keeps what each of them gives."""

    def __init__(self) -> None:
        self.job: dict[str, object] = {}
        self.verdict: dict[str, object] = {}
        self.runs: dict[str, dict[str, object]] = {}
        self.launcher_stacks: tuple[ThreadStack, ...] = ()
        self.course: Course | None = None
        self.alike: Alike | None = None
        self.processes: dict[int, list[RankRecord]] = {}
        self.loose: dict[int, RankRecord] = {}
        self.dumps: list[DumpFile] = []
        self.absent: list[Unavailable] = []
        self._output_paths: list[tuple[Path, int | None]] = []
        self._files_seen = 0

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
            self._add_runs_beside(path)
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

    def _add_runs_beside(self, folder: Path) -> None:
        """Reads the runs that found the report folder taken, where they ran beside the one that has it: one on each node."""
        for other in sorted(p for p in folder.iterdir() if (p / "bundle" / "job.json").is_file()):
            job = self.attempt("job.json", partial(read_object, other / "bundle" / "job.json")) or {}
            if text(job, "judged_elsewhere") and (folder / "bundle" / "nodes").is_dir():
                continue  # its ranks came with those of the node that judged
            if ran_together(self.job, job):
                self._add_run_directory(other / "bundle")
            else:
                self.absent.append(Unavailable(f"folder {other}", "it holds a run of another time"))

    def _add_run_directory(self, folder: Path) -> None:
        found = {n: self.attempt(n, partial(read_object, folder / n)) or {} for n in _OF_A_RUN if (folder / n).exists()}
        self.runs[str(folder)] = job = found.get("job.json", {})
        self.job = joined_job(self.job, job)
        self.verdict = joined_verdict(self.verdict, found.get("verdict.json", {}))
        if (folder / COURSE).exists():
            self.course = joined_course(self.course, self.attempt(COURSE, lambda: read_course(folder / COURSE)))
        if (folder / ALIKE).exists():
            self.alike = alike_of(self.attempt(ALIKE, partial(read_object, folder / ALIKE)) or {})
        launcher = folder / "launcher.json"
        if launcher.exists():
            from unhang.read.stack_texts import read_pyspy

            self.launcher_stacks = self.attempt("stack of the launcher", lambda: read_pyspy(launcher)) or ()
        if (folder / "output.log").exists():
            self._output_paths.append((folder / "output.log", None))
        outputs = folder / "outputs"  # the ends of the files to which a job wrote that was looked at from outside
        for path in sorted(outputs.iterdir()) if outputs.is_dir() else ():
            self._add_output(path)
        self._add_ranks(folder)
        nodes = folder / "nodes"
        read = set(self.alike.nodes) if self.alike else None
        for name in sorted(os.listdir(nodes)) if nodes.is_dir() else ():
            if (read is None or name in read) and (nodes / name).is_dir():
                self._add_node(nodes / name)

    def _add_node(self, folder: Path) -> None:
        """Reads what the watcher of another node sent to the one that wrote this run directory."""
        self.runs[str(folder)] = self.attempt("job.json", partial(read_object, folder / "job.json")) or {}
        node = self.attempt("node.json", partial(read_object, folder / "node.json")) or {}
        self._add_ranks(folder, whole(node, "clock_offset_ns") or 0, text(node, "unheard"))

    def _add_ranks(self, folder: Path, clock_offset_ns: int = 0, unheard: str = "") -> None:
        ranks = folder / "ranks"
        for rank_folder in sorted(ranks.iterdir()) if ranks.is_dir() else ():
            if rank_folder.is_dir():
                self._add_rank_folder(rank_folder, clock_offset_ns, unheard)

    def _add_output(self, path: Path) -> None:
        from unhang.read.sniff import rank_of_log

        self._output_paths.append((path, rank_of_log(path)))

    def _add_rank_folder(self, folder: Path, clock_offset_ns: int = 0, unheard: str = "") -> None:
        record = read_rank_folder(folder)
        if record is None:
            self.absent.append(
                Unavailable(f"folder {folder.name}", "neither its name nor identity.json tells the rank")
            )
        else:
            record.unheard = unheard
            if clock_offset_ns:
                shift_clock(record, clock_offset_ns)
            self.processes.setdefault(record.rank, []).append(record)

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
            elif self._files_seen >= MAX_FILES:
                self.absent.append(Unavailable(f"files of {folder}", f"more than {MAX_FILES} files were given"))
                return
            elif path.is_file():
                self._add_file(path)

    def _add_subfolder(self, path: Path, depth: int) -> None:
        if depth <= 0:
            self.absent.append(Unavailable(f"folder {path}", f"it is more than {MAX_DEPTH} folders deep"))
        elif FOLDER_NAME.match(path.name) or any(os.path.isdir(path / name) for name in ("ranks", "bundle")):
            self.add(path)
        else:
            self._add_loose_folder(path, depth - 1)

    def _add_file(self, path: Path) -> None:
        from unhang.read.sniff import (  # a folder of dumps never needs it
            Kind,
            kind_of,
            rank_from_name,
            rank_of_log,
            why_no_evidence,
        )

        self._files_seen += 1
        kind = self.attempt(str(path), lambda: kind_of(path))
        if kind is None:
            return
        rank = rank_from_name(path)
        if kind is Kind.OUTPUT:
            self._output_paths.append((path, rank_of_log(path) if path.name not in OWN_FILES else None))
        elif kind is Kind.OTHER:
            self.absent.append(Unavailable(str(path), why_no_evidence(path)))
        elif rank is None:
            reason = f"the {kind.value}'s name does not tell the rank; name it like trace_rank_3"
            self.absent.append(Unavailable(str(path), reason))
        else:
            self._add_rank_file(path, kind, self.loose.setdefault(rank, RankRecord(RankIdentity(rank))))

    def _add_rank_file(self, path: Path, kind: Kind, record: RankRecord) -> None:
        from unhang.read.launchers import read_elastic_error
        from unhang.read.page import read_page
        from unhang.read.sniff import Kind
        from unhang.read.stack_texts import read_pyspy

        if kind is Kind.DUMP:
            record.dump_paths.append(path)
        elif kind is Kind.STACKS:
            record.stacks = record.attempt(path.name, lambda: read_pyspy(path)) or record.stacks
        elif kind is Kind.PAGE:
            record.page = record.attempt(path.name, lambda: read_page(path)) or record.page
        else:
            record.error = record.attempt(path.name, lambda: read_elastic_error(path)) or record.error

    def chosen(self) -> list[Processes]:
        """One process per rank, of each attempt. Loose files fill in ranks of the last one that no folder describes."""
        attempts, absent = attempts_of(self.processes)
        self.absent.extend(absent)
        found = dict(attempts[-1]) if attempts else {}
        for rank, record in self.loose.items():
            known = found.setdefault(rank, record)
            if known is not record:
                _fill(known, record)
        return [*attempts[:-1], dict(sorted(found.items()))]

    def outputs(
        self, attempts: Sequence[Processes], on_progress: Progress | None
    ) -> tuple[list[tuple[Path, OutputLog]], list[OutputLog]]:
        """Our own outputs and all others, read last because the processes' numbers tell the ranks in some of them. The stacks in them complete the records."""
        if not self._output_paths:
            return [], []
        from unhang.read.logs.pasted_stacks import take_stacks  # most folders of dumps hold no log
        from unhang.read.logs.source import read_outputs

        ranks_by_pid = {r.identity.pid: rank for found in attempts for rank, r in found.items() if r.identity.pid}
        own: list[tuple[Path, OutputLog]] = []
        others: list[tuple[Path, OutputLog]] = []
        for path, log in read_outputs(self._output_paths, ranks_by_pid, on_progress):
            if isinstance(log, UnreadableInput):
                self.absent.append(Unavailable("output", str(log)))
                continue
            if path.name in OWN_FILES:
                own.append((path, log))
            else:
                others.append((path, log))
            if log.omitted_lines:
                reason = "only the lines that report trouble and the last lines are kept"
                self.absent.append(Unavailable(f"{log.omitted_lines} lines of {path.name}", reason))
        rest, nobodys = take_stacks(attempts[-1], others, bool(self.dumps))
        self.absent.extend(nobodys)
        return own, [log for _, log in rest]


def _fill(known: RankRecord, loose: RankRecord) -> None:
    known.dump_paths = known.dump_paths or loose.dump_paths
    known.stacks = known.stacks or loose.stacks
    known.fault_dumps = known.fault_dumps or loose.fault_dumps
    known.error = known.error or loose.error
    known.page = known.page or loose.page
    known.absent.extend(loose.absent)


def holds_run_directory(path: Path, depth: int = 4) -> bool:
    """Whether a folder is, or holds, what `unhang run` or `unhang bundle` wrote."""
    if not path.is_dir():
        return False
    if FOLDER_NAME.match(path.name) or any(os.path.exists(path / name) for name in ("job.json", "ranks", "bundle")):
        return True
    if depth <= 0:
        return False
    try:
        with os.scandir(path) as entries:
            folders = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return False
    return any(holds_run_directory(folder, depth - 1) for folder in folders)


ALIKE = "alike.json"


class Alike(NamedTuple):
    """`read`: the ranks that stand for all of `world`, with those of which nobody told; `unseen`: those that nobody could ask.

    `is_whole`: every kind of rank is among those that were read; else nothing is known of the others. `nodes`: the folders that were read.
    """

    world: int
    read: tuple[int, ...]
    unseen: tuple[int, ...]
    is_whole: bool
    nodes: tuple[str, ...] = ()

    @property
    def expected(self) -> set[int]:
        """Every rank that would be there if all was well."""
        return {*self.read, *self.unseen} if self.is_whole else set(range(self.world))

    @property
    def hidden(self) -> set[int]:
        """Those of them of which nothing can be known."""
        return set(self.unseen) if self.is_whole else self.expected - set(self.read)


def alike_of(fields: Mapping[str, object]) -> Alike | None:
    """What a file says; None where it says nothing."""
    world, read, unseen = whole(fields, "world"), wholes(fields.get("read")), wholes(fields.get("unseen"))
    nodes = texts(fields, "nodes")
    return Alike(world, read, unseen, fields.get("is_whole") is True, nodes) if world and read else None
