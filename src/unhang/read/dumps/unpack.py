"""Archives of runs and of logs: unpacked into a folder, since logs and stacks are files of their own."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.read.dumps import archive
from unhang.read.dumps.locate import archive_at, opener
from unhang.read.dumps.names import is_archive
from unhang.read.files import unreadable

MAX_UNPACKED_BYTES = 8 << 30
_OF_A_RUN = re.compile(r"(^|/)(job\.json|report\.json|ranks/r\d{1,9}-\d{1,9}/[^/]+)$")
_IS_TEXT = re.compile(
    r"(^|/)[^/.][^/]*\.(log|err|out|txt|jsonl|csv)(\.\d+|\.gz|\.xz|\.zst|\.bz2)*$|(^|/)(stdout|stderr|stdlog)$", re.I
)


def is_packed(path: Path) -> bool:
    """Whether a file is an archive with runs or logs in it, not with dumps alone. One that cannot be read is none."""
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


def _size(content: archive.Archive) -> int:
    return sum(member.size for member in content.members.values())


def _everything(path: Path) -> archive.Archive:
    return archive.list_archive(opener(str(path)), str(path), path.stat().st_size, lambda *_: True)


def unpack(path: Path, folder: Path) -> str:
    """Writes the plain files of an archive below `folder`; what `list_archive` leaves out is left out.

    Returns:
        What of it is damaged; empty if all could be read.

    Raises:
        UnreadableInput: it is damaged, too large, or an attack.
        OSError: there is no room.
    """
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
