"""Files -> evidence, one file per format; nothing here executes or trusts what a file says.

Here: what was given (paths, patterns, URLs, `-`, reports, archives of runs and of logs) -> what is to be read -> one Case.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import NoNumpy, NotEvidence, NothingToJudge, UnhangError, UnreadableInput, WrongUsage
from unhang.model import Case, Unavailable
from unhang.numeric import has_numpy
from unhang.read.case import assemble
from unhang.read.dumps import DumpFile
from unhang.read.files import unreadable
from unhang.read.gathered import Gathered, Progress, gather
from unhang.read.rank_folder import NO_DUMP
from unhang.read.runs import BUNDLE, REPORTS, has_bundle, is_own_file, jobs_in, jobs_of, names_in, report_beside

if TYPE_CHECKING:
    from unhang.read.dumps.archive import Archive
    from unhang.read.dumps.engine import Engine
    from unhang.read.dumps.reader import DumpReader


ENGINES = ("local", "ray")
ReadDumps = Callable[[Sequence[DumpFile]], "DumpReader"]
Given = Path | str
Log = Callable[[str], None]
STDIN = "-"


def read_bundle(path: Path, *, trusted: bool = False) -> Case:
    """The case in a run directory or a report folder. `trusted`: our own job writes it at this moment.

    Raises:
        NothingToJudge: there is nothing in it that unhang can read.
    """
    return read_paths([path], trusted=trusted)


def read_paths(paths: Sequence[Path], *, trusted: bool = False) -> Case:
    """The case in folders and files, see `open_paths`."""
    return open_paths(paths, trusted=trusted).case


class Evidence:
    """A case, and the dumps that it was read from, as far as the first look at them went."""

    def __init__(self, case: Case, gathered: Gathered, dumps: DumpReader | None = None) -> None:
        self.case, self.dumps, self._gathered = case, dumps, gathered

    @property
    def is_partial(self) -> bool:
        """Whether of each dump only the last calls were read."""
        return self.dumps is not None and not self.dumps.is_whole

    def closer(self, ranks: Collection[int]) -> Case:
        """The case with all calls of these ranks and their stacks."""
        if self.dumps is not None and self.is_partial and ranks:
            with without_collector():
                self.case = assemble(self._gathered, self.dumps.closer(ranks))
        return self.case

    def whole(self) -> Case:
        """The case with all calls of all ranks, with their stacks where the dumps are few."""
        if self.dumps is not None and self.is_partial:
            with without_collector():
                self.case = assemble(self._gathered, self.dumps.everything())
        return self.case


def open_paths(
    paths: Sequence[Path | str],
    *,
    trusted: bool = False,
    read_dumps: ReadDumps | None = None,
    on_progress: Progress | None = None,
) -> Evidence:
    """The evidence in folders and files, which are recognised by their content. `on_progress`: called while logs are read.

    Raises:
        UnreadableInput: only files were given, and none of them can be read.
        NothingToJudge: there is nothing in them that unhang can read.
    """
    with without_collector():
        gathered = gather(paths, on_progress)
        if gathered.dumps and not has_numpy() and gathered.logs:
            lacks = Unavailable(f"{len(gathered.dumps)} dumps", NoNumpy.help_text)
            gathered = replace(gathered, dumps=(), absent=(*gathered.absent, lacks))
        if gathered.dumps and not gathered.has_processes:
            dumps = (read_dumps or _read_here)(gathered.dumps)
            evidence = Evidence(assemble(gathered, dumps.look()), gathered, dumps)
        else:
            evidence = Evidence(assemble(gathered, trusted=trusted), gathered)
    case = evidence.case
    if case.present or gathered.job:
        return evidence
    raise _nothing_in(paths, [a for a in (*case.absent, *gathered.absent) if a.reason != NO_DUMP])


def _nothing_in(paths: Sequence[Given], absent: Sequence[Unavailable]) -> UnhangError:
    """The error where nothing that was given can be judged. `absent`: what was noted of it."""
    given = {os.path.abspath(path): str(path) for path in paths}
    reasons = list(dict.fromkeys(_named(a, given) for a in absent))
    files = [path for path in paths if not (isinstance(path, Path) and path.is_dir())]
    if len(files) == len(paths) and (reasons := reasons or [f"{path}: it is empty" for path in files]):
        return NotEvidence(reasons[0])
    shown = f" ({'; '.join(reasons[:3])})" if reasons else ""
    return NothingToJudge(f"no evidence in {', '.join(map(str, paths[:3]))}{shown}")


def _named(absence: Unavailable, given: Mapping[str, str]) -> str:
    """The reason, with the file that it is about as it was given."""
    file = os.path.abspath(absence.what) if "/" in absence.what or absence.what in given.values() else ""
    name = given.get(file, os.path.basename(file))
    return f"{name}: {absence.reason}" if file and os.path.basename(file) not in absence.reason else absence.reason


def _read_here(files: Sequence[DumpFile]) -> DumpReader:
    from unhang.read.dumps.reader import DumpReader  # a job's watcher never needs it

    return DumpReader(files)


@contextmanager
def dump_reader(
    engine: str, ray_address: str | None, use_cache: bool, on_progress: Progress | None = None
) -> Iterator[ReadDumps]:
    """Makes readers of dumps. `engine`: one of ENGINES, closed at the end. `on_progress`: called while dumps are read."""

    def read(files: Sequence[DumpFile], runs: Engine | None = None) -> DumpReader:
        from unhang.read.dumps.reader import DumpReader

        return DumpReader(files, runs, on_progress, use_cache)

    if engine == "local":
        yield read
        return
    from unhang.read.dumps.engine_ray import RayEngine

    with RayEngine(ray_address) as ray:
        yield lambda files: read(files, ray)


@contextmanager
def without_collector(is_last_act: bool = False) -> Iterator[None]:
    """Millions of small objects are made, none of them in cycles: the garbage collector would double the time.

    `is_last_act`: what is alive at the end stays; to look through all of it once more would take longer than the process has left.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if is_last_act:
                gc.freeze()
            gc.enable()


def ignore(_: str) -> None:
    """Takes a line of which nobody wants to hear."""


class SeveralRuns(WrongUsage):
    """A folder holds runs of several jobs where one is wanted."""

    help_text = "name one of them; 'unhang diagnose FOLDER' alone lists them"


def given_paths(texts: Sequence[str]) -> tuple[Given, ...]:
    """Paths of this machine, of which patterns that no shell expanded may give several, and URLs for fsspec.

    A link to another one of them is left out: `unhang-reports/*` gives the newest run twice.

    Raises:
        NotEvidence: there is none, or it may not be read.
    """
    found = [path for text in texts for path in _paths(text)]
    if len(found) < 2:
        return tuple(found)
    whole = {path.resolve() for path in found if isinstance(path, Path) and not path.is_symlink()}
    return tuple(p for p in found if not (isinstance(p, Path) and p.is_symlink() and p.resolve() in whole))


def _paths(text: str) -> list[Given]:
    if "://" in text or text == STDIN:
        return [text]
    path = Path(text)
    try:
        path.stat()
    except (OSError, ValueError) as error:
        import difflib  # a job's watcher needs neither
        import glob

        if found := sorted(glob.glob(text, recursive=True)):
            return [Path(name) for name in found]
        if any(name.startswith(path.name) for name in names_in(path.parent)):  # torch's own setting is such a beginning
            return [path]
        reason = getattr(error, "strerror", None) or str(error)
        near = difflib.get_close_matches(path.name, names_in(path.parent), n=1, cutoff=0.75)
        hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
        raise NotEvidence(f"{text}: {'nothing matches' if glob.has_magic(text) else reason}{hint}") from None
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise NotEvidence(f"{text}: Permission denied")
    return [path]


class Opened(list[Given]):
    """What is to be read. `shown` gives a text that speaks of copies and unpacked files the names that were given."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, str] = {}

    def shown(self, text: str) -> str:
        """The text with the names that were given."""
        for path, name in self.names.items():
            text = text.replace(path, name)
        return text


@contextmanager
def opened(paths: Sequence[Given], log: Log = ignore) -> Iterator[Opened]:
    """The evidence: `-` is copied and archives of runs and of logs are unpacked for as long; a report leads to the bundle beside it.

    `log` takes a line on what is damaged.

    Raises:
        UnreadableInput: one of them is empty, damaged or too large.
    """
    found = Opened()
    with ExitStack() as stack:
        try:
            found.extend(dict.fromkeys([_evidence(path, stack, found.names, log) for path in paths]))
            yield found
        except UnhangError as error:
            error.args = (found.shown(str(error)),)
            raise


def _evidence(path: Given, stack: ExitStack, names: dict[str, str], log: Log) -> Given:

    def temporary() -> Path:
        import tempfile  # mostly nothing is packed

        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unhang-")))

    if path == STDIN:
        copy = temporary() / "stdin"
        names[str(copy)] = "the standard input"
        return _stdin(copy)
    if not isinstance(path, Path):
        return path
    if path.name in REPORTS and path.is_file():  # whole or damaged
        beside = path.parent / BUNDLE
        if beside.is_dir() or has_bundle(path.parent):
            return beside if beside.is_dir() else path.parent
    if is_own_file(path):
        return report_beside(path)
    if is_packed(path):
        folder = temporary()
        names[str(folder)] = str(path)
        if damage := unpack(path, folder):
            log(f"{path}: {damage}")
        return folder
    return path


def _stdin(copy: Path) -> Path:
    import shutil

    with copy.open("wb") as f:
        if sys.stdin is not None:
            shutil.copyfileobj(sys.stdin.buffer, f)
    if not copy.stat().st_size:
        raise NotEvidence(f"{copy} is empty")
    return copy


def check_one_job(paths: Sequence[Given], log: Log = ignore) -> None:
    """Refuses folders with the runs of several jobs; of runs that were named together `log` only takes that they look so.

    Raises:
        SeveralRuns: a folder holds them.
    """
    folders = [path for path in paths if isinstance(path, Path) and path.is_dir()]
    for folder in folders:
        if len(jobs := jobs_in(folder)) > 1:
            raise SeveralRuns(f"{folder} holds {len(jobs)} runs")
    runs = [folder for folder in folders if has_bundle(folder)]
    if len(runs) > 1 and len(jobs := jobs_of(runs)) > 1:
        doubt = "they do not look like nodes of one job, and are judged as one because they were named together"
        log(f"{doubt}: {', '.join(map(str, runs[:3]))}{', ...' if len(runs) > 3 else ''}")


MAX_UNPACKED_BYTES = 8 << 30
_OF_A_RUN = re.compile(r"(^|/)(job\.json|report\.json|ranks/r\d{1,9}-\d{1,9}/[^/]+)$")
_IS_TEXT = re.compile(
    r"(^|/)[^/.][^/]*\.(log|err|out|txt|jsonl|csv)(\.\d+|\.gz|\.xz|\.zst|\.bz2)*$|(^|/)(stdout|stderr|stdlog)$", re.I
)


def is_packed(path: Path) -> bool:
    """Whether a file is an archive with runs or logs in it, not with dumps alone. One that cannot be read is none."""
    from unhang.read.dumps.identity import is_archive
    from unhang.read.dumps.locate import archive_at

    if not is_archive(path.name) or not path.is_file():
        return False
    try:
        content = archive_at(os.path.abspath(path))  # which reads the dumps in it at the same time
        names = (*content.others, *content.members)
        if any(map(_OF_A_RUN.search, names)):
            return True
        if not any(map(_IS_TEXT.search, names)):
            return False
    except UnreadableInput:
        pass  # it may be cut
    try:
        content = _everything(path)
    except UnreadableInput:
        return False
    if any(map(_OF_A_RUN.search, content.members)):
        return True
    return any(map(_IS_TEXT.search, content.members)) and _size(content) <= MAX_UNPACKED_BYTES


def _size(content: Archive) -> int:
    return sum(member.size for member in content.members.values())


def _everything(path: Path) -> Archive:
    from unhang.read.dumps.archive import list_archive
    from unhang.read.dumps.locate import opener

    return list_archive(opener(str(path)), str(path), path.stat().st_size, lambda *_: True)


def unpack(path: Path, folder: Path) -> str:
    """Writes the plain files of an archive below `folder`; what `list_archive` leaves out is left out.

    Returns:
        What of it is damaged; empty if all could be read.

    Raises:
        UnreadableInput: it is damaged, too large, or an attack.
        OSError: there is no room.
    """
    from unhang.read.dumps import archive
    from unhang.read.dumps.locate import opener

    name = str(path)
    content = _everything(path)
    if _size(content) > MAX_UNPACKED_BYTES:
        raise archive.too_large(name, MAX_UNPACKED_BYTES)
    for inner, member in content.members.items():
        data = archive.packed_member(content, inner, opener(name), archive.MAX_DUMP_BYTES)
        target = folder / inner
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            raise unreadable(name, f"{inner} is a file and a folder in it", "unpack it by hand") from error
        if member.written_ns:
            with suppress(OSError, OverflowError):
                os.utime(target, ns=(member.written_ns, member.written_ns))
    return content.damage
