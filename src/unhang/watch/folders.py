"""The run directory, in memory while the job runs; what is written into it; the report directory, where its evidence stays."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from unhang.errors import UnhangError

SHARED_MEMORY = Path("/dev/shm")
ROOM_NEEDED_BYTES = 32 << 20
LONGEST_PATH = 48  # a unix socket's path has 107 bytes, and the folders of the ranks come after this one
LOCK = ".lock"
BUNDLE = "bundle"
STALE_AFTER_S = 24 * 3600.0


class NoFolder(UnhangError):
    """No folder can be written, not even a temporary one."""

    help_text = "set TMPDIR to a folder that can be written"


def _has_room(folder: Path) -> bool:
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize >= ROOM_NEEDED_BYTES and os.access(folder, os.W_OK | os.X_OK)


def own_folder(parent: Path) -> Path | None:
    """`parent`/unhang-<uid>, made if need be; None if it is not ours alone (somebody may have made it before us)."""
    folder = parent / f"unhang-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return folder if is_ours else None


def sweep(folder: Path, now_s: float, stale_after_s: float = STALE_AFTER_S) -> None:
    """Removes run directories that a killed `unhang` left behind: old, and locked by no process any more.

    A lock, unlike a pid, also holds across containers that share the folder.
    """
    for run_dir in folder.iterdir():
        with suppress(OSError):
            if now_s - run_dir.stat().st_mtime < stale_after_s:
                continue
            descriptor = os.open(run_dir / LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(run_dir, ignore_errors=True)
            finally:
                os.close(descriptor)


def make_run_dir(shared_memory: Path = SHARED_MEMORY) -> Path:
    """A new folder of our own (0700) with a short path: in shared memory if it has room, else among the temporary ones.

    Raises:
        NoFolder: nothing can be written.
    """
    for parent in (shared_memory, Path(tempfile.gettempdir()), Path("/tmp")):
        folder = own_folder(parent) if _has_room(parent) and len(str(parent)) < LONGEST_PATH else None
        with suppress(OSError):
            if folder:
                sweep(folder, time.time())
                return Path(tempfile.mkdtemp(dir=folder, prefix=""))
    try:
        return Path(tempfile.mkdtemp(prefix="unhang-"))
    except OSError as error:
        raise NoFolder(f"no temporary folder can be written: {error}") from error


def hold(run_dir: Path) -> int:
    """Marks the run directory as in use, as long as this process lives. Returns the lock's descriptor.

    Raises:
        OSError: it cannot be marked.
    """
    descriptor = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _make_new(folder: Path) -> Path:
    """`folder`, or the first of `folder`-2, `folder`-3 ... that does not exist (two jobs of the same second)."""
    for number in range(1, 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        with suppress(FileExistsError):
            candidate.mkdir(parents=True)
            return candidate
    raise FileExistsError(f"{folder} and 998 more exist")


def make_fallback_dir() -> Path:
    """A report directory among the temporary folders.

    Raises:
        OSError: no such folder can be written.
    """
    return Path(tempfile.mkdtemp(prefix="unhang-report-"))


def _take(wanted: Path, complain: Callable[[str], None]) -> Path:
    """`wanted`, or where another run has taken it, of now or of earlier, a folder of our own below it and one line.

    Who makes the folder of the evidence has taken it: only one can, also over a network file system.
    """
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        (wanted / BUNDLE).mkdir()
    except FileExistsError:
        if not wanted.is_dir():
            raise
        own = _make_new(wanted / (platform.node() or "run"))
        (own / BUNDLE).mkdir()
        complain(f"{wanted} holds the report of another run; this one goes to {own}")
        return own
    return wanted


def make_report_dir(wanted: Path, is_default: bool, complain: Callable[[str], None]) -> Path | None:
    """The folder for the report, made before the job starts, to find out in time whether it can be written.

    Returns:
        An absolute path: `wanted` or a folder below it that no other run has, or a temporary folder and one line, or None and
        one line if there is none either.
    """
    try:
        folder = _make_new(wanted) if is_default else _take(wanted, complain)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
            probe.flush()
        return folder.absolute()
    except OSError as error:
        reason = f"the report cannot go to {wanted} ({error.strerror or error})"
    with suppress(OSError):
        fallback = make_fallback_dir()
        complain(f"{reason}; it goes to {fallback}")
        return fallback
    complain(f"{reason}, nor to a temporary folder: there will be none on disk")
    return None


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Regular files below `folder` with their sizes; no sockets, links, locks or half-written files."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names if name != LOCK and not name.endswith(".tmp")):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield status.st_size, path


def _copy_file(source: Path, target: Path) -> None:
    """One file; the command line that a training process noted of itself loses its secrets."""
    if source.name == "identity.json":
        from unhang.read.environment import redact_command  # it brings the readers with it

        with suppress(ValueError, UnicodeDecodeError):
            identity = json.loads(source.read_text(encoding="utf-8"))
            if isinstance(identity, dict) and isinstance(identity.get("argv"), list):
                identity["argv"] = redact_command([str(word) for word in identity["argv"]])
                target.write_text(json.dumps(identity), encoding="utf-8")
                return
    shutil.copyfile(source, target)


def copy_bundle(run_dir: Path, target: Path, copy_file: Callable[[Path, Path], None] = _copy_file) -> None:
    """Copies everything but sockets, the small files first. `target` does not exist, or is the empty folder that we made for it.

    Raises:
        OSError: it could not be written whole (then nothing of it is left), or something else is at `target`.
    """
    staging = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        for _, source in sorted(_files(run_dir)):
            copy = staging / source.relative_to(run_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                copy_file(source, copy)
            except FileNotFoundError:
                if source.exists():
                    raise
                # else a process that outlived the job has just replaced or removed its file
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        with suppress(OSError):
            target.rmdir()  # it is left as it was if it is not empty
        raise


def save_bundle(
    run_dir: Path,
    report_dir: Path | None,
    complain: Callable[[str], None],
    copy_file: Callable[[Path, Path], None] = _copy_file,
) -> Path:
    """Brings the evidence to `report_dir`/bundle and removes the run directory.

    Where that cannot be written (any more), a temporary folder takes its place, and one line says so; if that fails
    too, the run directory stays where it is.

    Returns:
        The folder that holds the evidence.
    """
    reason = "there is no folder for the report"
    if report_dir:
        try:
            copy_bundle(run_dir, report_dir / BUNDLE, copy_file)
            shutil.rmtree(run_dir, ignore_errors=True)
            return report_dir / BUNDLE
        except OSError as error:
            reason = f"the evidence cannot go to {report_dir} ({error.strerror or error})"
    try:
        fallback = make_fallback_dir() / BUNDLE
        copy_bundle(run_dir, fallback, copy_file)
    except OSError:
        complain(f"{reason}; it stays in {run_dir}")
        return run_dir
    complain(f"{reason}; it goes to {fallback}")
    shutil.rmtree(run_dir, ignore_errors=True)
    return fallback


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is either there completely or not at all; a full disk is ignored."""
    with suppress(OSError):
        unfinished = path.with_suffix(path.suffix + ".tmp")
        unfinished.write_bytes(content)
        unfinished.replace(path)


def fields_of(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none, or none that can be read."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def write_job_file(run_dir: Path, content: Mapping[str, Any]) -> None:
    """Writes `job.json`."""
    write_whole(run_dir / "job.json", json.dumps(content, indent=1).encode())


def forget_nodes(run_dir: Path) -> None:
    """Marks what was heard of other nodes as out of date: the watcher that heard them is gone."""
    for path in run_dir.glob("nodes/*/node.json"):
        if fields := fields_of(path):
            gone = {"unheard": "the watcher that heard it ended while the job ran"}
            write_whole(path, json.dumps({**fields, **gone}).encode())


def withdraw_verdict(run_dir: Path) -> None:
    """Takes back what the watcher suspected: the job has come to a good end by itself."""
    if verdict := fields_of(run_dir / "verdict.json"):
        write_whole(run_dir / "verdict.json", json.dumps({**verdict, "withdrawn": True}).encode())


def ended_well_before(run_dir: Path, moment_ns: int) -> bool:
    """Whether there were ranks, and all of them had ended with exit code 0 by then, as the watcher saw it."""
    ends = []
    for folder in (run_dir / "ranks").glob("r*-*"):
        fields = fields_of(folder / "proc.json")
        ends.append(fields.get("exit_code") == 0 and (fields.get("died_ns") or moment_ns + 1) <= moment_ns)
    return bool(ends) and all(ends)


# What stays in the folder of the reports: the link to the newest one, and which of them are removed.

LATEST = "latest"


class Kept(NamedTuple):
    """A folder with the report of a run, or of several (of `unhang verify`, or of several nodes). `began_ns`: of the newest."""

    path: Path
    began_ns: int
    is_clean: bool


def point_latest(report_dir: Path) -> None:
    """Makes `latest` beside a report folder lead to it. Somebody else's file of that name stays; a disk without links has none."""
    link, fresh = report_dir.with_name(LATEST), report_dir.with_name(f".{LATEST}-{os.getpid()}")
    with suppress(OSError):
        if link.is_symlink() or not link.exists():
            fresh.symlink_to(report_dir.name)
            fresh.replace(link)


def parse_keep(text: str) -> str:
    """`all`, `failed`, or how many.

    Raises:
        ValueError: it is none of these.
    """
    if text in ("all", "failed") or (text.isascii() and text.isdecimal() and int(text) > 0):
        return text
    raise ValueError("not all, failed, or a number from 1")


def kept_in(folder: Path) -> list[Kept]:
    """What lies in a folder of reports, the newest first. What is no report of ours is none of our business."""
    from unhang.read.runs import began_ns, has_bundle, is_run, jobs_in, jobs_of

    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                path = Path(entry.path)
                jobs = jobs_of([path]) if is_run(path) or has_bundle(path) else jobs_in(path)
                if jobs:
                    is_clean = all(run.report and _is_clean(run.report) for job in jobs for run in job)
                    found.append(Kept(path, max(map(began_ns, jobs)), is_clean))
    return sorted(found, key=lambda kept: (-kept.began_ns, kept.path))


def _is_clean(report: Path) -> bool:
    """Whether a report says that nothing was wrong; one that cannot be read does not."""
    from unhang.errors import UnhangError
    from unhang.read.runs import read_report

    with suppress(UnhangError, OSError):
        found = read_report(report)
        return found.exit_code == 0 and not found.job.exit_code
    return False


def to_remove(kept: Sequence[Kept], keep: str) -> list[Path]:
    """The folders that are not to be kept; the oldest last."""
    if keep == "all":
        return []
    if keep == "failed":
        return [one.path for one in kept if one.is_clean]
    return [one.path for one in kept[int(keep) :]]


def remove(paths: Sequence[Path]) -> None:
    """Removes report folders, and leads `latest` to the newest that is left.

    Raises:
        OSError: one cannot be removed.
    """
    for path in paths:
        shutil.rmtree(path)
    for folder in {path.parent for path in paths}:
        link = folder / LATEST
        if link.is_symlink() and not link.exists():
            left = kept_in(folder)
            link.unlink()
            if left:
                point_latest(left[0].path)
