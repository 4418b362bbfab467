"""The run directory, in memory while the job runs, and the report directory, where its evidence stays."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from unhang.errors import UnhangError

SHARED_MEMORY = Path("/dev/shm")
ROOM_NEEDED_BYTES = 32 << 20
LONGEST_PATH = 48  # a unix socket's path has 107 bytes, and the folders of the ranks come after this one
LOCK = ".lock"
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


def _own_folder(parent: Path) -> Path | None:
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
        folder = _own_folder(parent) if _has_room(parent) and len(str(parent)) < LONGEST_PATH else None
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


def make_report_dir(wanted: Path, is_default: bool, complain: Callable[[str], None]) -> Path | None:
    """The folder for the report, made before the job starts, to find out in time whether it can be written.

    Returns:
        An absolute path: `wanted`, or a temporary folder and one line, or None and one line if there is none either.
    """
    try:
        folder = _make_new(wanted) if is_default else wanted
        folder.mkdir(parents=True, exist_ok=True)
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
