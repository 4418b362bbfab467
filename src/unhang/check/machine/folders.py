"""A folder that a job writes to: its file system, what is free, whether it can be written, and how fast.

A file system whose server is gone lets every call wait in the kernel, so all calls are made in a child with a limit.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from unhang.check.areas import Context
from unhang.check.calls import TookTooLong, kept_while, limited
from unhang.model import Reading, Unavailable
from unhang.model.evidence import Value

LIMIT_S = 4.0
_ENOUGH_S, _WRITE_LIMIT_S = 0.7, 5.0
_EXCHANGE_LIMIT_S, _MAKE_LIMIT_S, _SEE_LIMIT_S, _PAUSE_S = 20.0, 2.0, 4.0, 0.05
_PART_BYTES = (1 << 20, 3 << 20, 12 << 20)
# The kernel's names for file systems whose files are on another machine.
_FAR = "nfs nfs4 lustre cifs smb3 ceph glusterfs beegfs gpfs wekafs panfs orangefs afs"
_FAR_FUSE = "sshfs s3fs gcsfuse ceph-fuse juicefs glusterfs blobfuse2 mountpoint-s3"
NETWORK_TYPES = frozenset([*_FAR.split(), *(f"fuse.{name}" for name in _FAR_FUSE.split())])


def read_folders(context: Context) -> Iterator[Reading | Unavailable]:
    """The folders that were named, the one in which the job starts, and that of temporary files."""
    wanted = dict.fromkeys(context.options.folders, "named")
    wanted.setdefault(Path(), "current")
    wanted.setdefault(Path(context.environ.get("TMPDIR") or "/tmp"), "temporary")
    for folder, role in wanted.items():
        fields: dict[str, Value] = {"role": role}
        try:
            fields |= read_folder(folder, writes=role == "named")
        except TookTooLong as error:
            fields |= {"hangs": True, "problem": str(error)}
        except OSError as error:
            fields["problem"] = error.strerror or str(error)
        except RuntimeError as error:
            yield Unavailable("machine.folder", f"{folder.absolute()}: {error}")
            continue
        yield Reading("machine.folder", str(folder.absolute()), fields)


def read_folder(folder: Path, writes: bool = False) -> dict[str, Any]:
    """Facts of a folder, as the fields of a reading. `writes`: also writes up to 16 MB, which are gone at once.

    Blocks up to the limit, and up to five seconds to write; as a rule less than one.

    Raises:
        TookTooLong: its file system does not answer, although this machine has time to ask.
        OSError: it is no folder, or cannot be looked at.
        RuntimeError: the machine is too busy to tell.
    """
    mounts = ""
    with suppress(OSError):
        mounts = Path("/proc/self/mounts").read_text()
    try:
        found: dict[str, Any] = limited(partial(_facts, folder, mounts), LIMIT_S)
    except TookTooLong:
        if _is_busy():
            raise RuntimeError("this machine is too busy to tell whether the file system answers") from None
        raise
    return found | (_speed(folder) if writes and found["exists"] else {})


def _nothing() -> None:
    """What even a busy machine does at once."""


def _is_busy() -> bool:
    """Whether a call that asks for nothing takes long, too."""
    began = time.monotonic()
    try:
        limited(_nothing, LIMIT_S)
    except TookTooLong:
        return True
    return time.monotonic() - began > LIMIT_S / 4


def _facts(folder: Path, mounts: str) -> dict[str, Any]:
    real = os.path.realpath(folder)
    exists = os.path.lexists(real)
    while not os.path.lexists(real):  # it may be made later: then the folder above it tells
        real = os.path.dirname(real)
    if not os.path.isdir(real):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    space = os.statvfs(real)
    mount, kind, device = mount_of(real, mounts)
    return {
        "exists": exists,
        "mount": mount,
        "type": kind,
        "device": device,
        "is_network": kind in NETWORK_TYPES,
        "size_bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
        "inodes": space.f_files or None,
        "inodes_free": space.f_favail if space.f_files else None,
        "is_read_only": bool(space.f_flag & os.ST_RDONLY),
        "is_writable": os.access(real, os.W_OK | os.X_OK),
    }


def mount_of(path: str, mounts: str) -> tuple[str, str, str]:
    """Where the file system of a path is mounted, its type, its device. `mounts`: as in /proc/mounts."""
    best = ("", "", "")
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        place = parts[1].replace(r"\040", " ")
        if (path == place or path.startswith(place.rstrip("/") + "/")) and len(place) >= len(best[0]):
            best = (place, parts[2], parts[0])
    return best


def _speed(folder: Path) -> dict[str, Any]:
    try:
        return dict(limited(partial(_written, folder), _WRITE_LIMIT_S))
    except TookTooLong:
        return {"write_mb_per_s": round(_PART_BYTES[0] / _WRITE_LIMIT_S / 1e6, 3), "write_problem": ""}


def _written(folder: Path) -> dict[str, Any]:
    """Writes parts, each on the disk before the next, the last only where the disk is fast; the speed is that of the best.

    The file has no name any more when the first byte is written, so nothing can be left.
    """
    speeds, written = [0.0], 0
    try:
        number = _nameless(folder)
        try:
            start = time.monotonic()
            for size in _PART_BYTES:
                part, began = os.urandom(size), time.monotonic()
                written += os.write(number, part)
                os.fsync(number)
                speeds.append(size / max(time.monotonic() - began, 1e-6) / 1e6)
                if time.monotonic() - start > _ENOUGH_S:
                    break
        finally:
            os.close(number)
    except OSError as error:
        return {"write_problem": error.strerror, "write_errno": error.errno}
    return {"written_bytes": written, "write_mb_per_s": round(max(speeds), 3), "write_problem": ""}


def _nameless(folder: Path) -> int:
    with suppress(OSError, AttributeError):
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    path = folder / f".unhang-check-{os.getpid()}"
    number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.unlink(path)
    return number


def read_shared(context: Context) -> Iterator[Reading | Unavailable]:
    """Whether this rank sees what the first rank writes into each folder. Blocks up to the limits of two exchanges and a look."""
    participants, folders = context.participants, context.options.folders
    first = min(participants.present)
    found: list[Reading | Unavailable] = []
    with ExitStack() as kept:
        own = [_kept_token(kept, folder) for folder in folders] if participants.member.rank == first else []
        tokens: Any = participants.exchange("machine/folders", own, _EXCHANGE_LIMIT_S).get(first) or []
        if not tokens:
            yield Unavailable("machine.folder_shared", "no folder was named (--folder)")
            return
        for folder, token in zip(folders, tokens, strict=False):
            if problem := token.get("problem"):
                found.append(Unavailable("machine.folder_shared", f"{folder}: {problem}"))
            else:
                fields = {**_looked_for(folder / token["name"]), "writer_rank": first}
                found.append(Reading("machine.folder_shared", str(folder), fields))
        participants.exchange("machine/folders/seen", True, _EXCHANGE_LIMIT_S)  # the first rank removes nothing before
    yield from found


def _kept_token(kept: ExitStack, folder: Path) -> dict[str, str]:
    """Writes a file that is there until `kept` is closed, and says its name; or what was against it."""
    name = f".unhang-check-{uuid.uuid4().hex}"
    path = folder / name
    try:
        kept.enter_context(kept_while(partial(_make, path), partial(_remove, path), _MAKE_LIMIT_S))
    except (TookTooLong, OSError, RuntimeError) as error:
        return {"problem": f"the first rank could not write there: {error}"}
    return {"name": name}


def _make(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _remove(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)


def _is_seen(path: Path) -> bool:
    began = time.monotonic()
    while time.monotonic() - began < _SEE_LIMIT_S:
        if os.path.exists(path):
            return True
        time.sleep(_PAUSE_S)
    return False


def _looked_for(path: Path) -> dict[str, Value]:
    """Looks for a file for some seconds: a network file system may show it late."""
    began = time.monotonic()
    try:
        sees, problem = bool(limited(partial(_is_seen, path), _SEE_LIMIT_S + 1)), None
    except (TookTooLong, OSError, RuntimeError) as error:
        sees, problem = False, str(error) or None
    return {"sees": sees, "after_s": round(time.monotonic() - began, 2), "problem": problem}
