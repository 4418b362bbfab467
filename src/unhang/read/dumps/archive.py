"""Compressed files and archives, read as data: nothing in them is unpacked under its name, nor executed.

The members of a compressed archive are copied once, to a nameless temporary file, so that each can be read by itself.
"""

from __future__ import annotations

import importlib
import io
import os
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from unhang.errors import UnreadableInput
from unhang.read.files import unreadable

if TYPE_CHECKING:
    import tarfile

MAX_DUMP_BYTES = 1 << 30
MAX_ARCHIVE_BYTES = 64 << 30
MAX_MEMBERS = 1 << 20
HEAD_BYTES = 4096
# zlib cannot shrink more than a thousandfold; dumps shrink ten- to fortyfold.
BOMB_RATIO, BOMB_BYTES = 200, 256 << 20
_CHUNK = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
BROKEN = (OSError, EOFError, ValueError, RuntimeError, zlib.error)
_BROKEN_ELSEWHERE = {"LZMAError", "TarError", "BadZipFile", "ZstdError"}  # of modules that most runs never import


def compression(head: bytes) -> str:
    """How data that begins like this is compressed; empty if it is not."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


@contextmanager
def decompressing(source: IO[bytes], head: bytes, name: str) -> Iterator[IO[bytes]]:
    """The plain content of a file that begins with `head`.

    Raises:
        UnreadableInput: zstandard is needed and missing.
    """
    kind = compression(head)
    if kind == "gzip":
        import gzip

        with gzip.GzipFile(fileobj=source) as plain:
            yield cast(IO[bytes], plain)
    elif kind == "zstd":
        yield cast(IO[bytes], _Zstandard(source, name))
    elif kind == "bzip2":
        import bz2

        with bz2.BZ2File(source) as plain:
            yield cast(IO[bytes], plain)
    elif kind == "xz":
        import lzma

        with lzma.LZMAFile(source) as plain:
            yield cast(IO[bytes], plain)
    else:
        yield source


class _Zstandard:
    """Reads zstd frames, a little at a time, since a kilobyte of them can hold 32 MiB."""

    def __init__(self, source: IO[bytes], name: str) -> None:
        try:
            zstandard: Any = importlib.import_module("zstandard")
        except ImportError as error:
            raise unreadable(name, "reading .zst files needs zstandard", "pip install 'unhang[analyze]'") from error
        self._source = source
        self._start: Callable[[], Any] = lambda: zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        self._frame = self._start()
        self._rest = b""
        self._ready = b""
        self._is_within = False

    def read1(self, size: int) -> bytes:
        """Some of the content; empty at its end."""
        while not self._ready:
            part = self._rest or self._source.read(1024)
            if not part:
                if self._is_within:
                    raise EOFError("the last frame is cut")
                return b""
            self._rest, self._is_within = b"", True
            self._ready = self._frame.decompress(part)
            if self._frame.eof:
                self._rest, self._is_within, self._frame = self._frame.unused_data, False, self._start()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data


def decompress(data: bytes, name: str, max_bytes: int = MAX_DUMP_BYTES) -> bytes:
    """The plain content of a whole file; data that is not compressed is returned as it is.

    Raises:
        UnreadableInput: it is damaged, or holds more than `max_bytes`.
    """
    if not compression(data[:8]):
        if len(data) > max_bytes:
            raise too_large(name, max_bytes)
        return data
    parts, size = [], 0
    try:
        with decompressing(io.BytesIO(data), data[:8], name) as plain:
            while part := _some_of(plain, max_bytes + 1 - size):
                parts.append(part)
                size += len(part)
                _check_bomb(size, len(data), name)
                if size > max_bytes:
                    raise too_large(name, max_bytes)
    except Exception as error:
        if not is_broken(error):
            raise
        raise unreadable(name, f"it cannot be decompressed ({error})") from error
    return b"".join(parts)


def _some_of(plain: IO[bytes], size: int) -> bytes:
    # `read` of a cut file would lose what comes before the cut.
    return cast(bytes, cast(Any, plain).read1(min(size, _CHUNK)))


def first_bytes(head: bytes, name: str) -> bytes:
    """What compressed data that begins with `head` holds at its beginning, as far as that can be said."""
    try:
        with decompressing(io.BytesIO(head), head, name) as plain:
            return _some_of(plain, HEAD_BYTES)
    except Exception as error:
        if not isinstance(error, UnreadableInput) and not is_broken(error):
            raise
        return b""


def is_broken(error: Exception) -> bool:
    """Whether an error means damaged data."""
    return isinstance(error, BROKEN) or any(kind.__name__ in _BROKEN_ELSEWHERE for kind in type(error).__mro__)


def too_large(name: str, max_bytes: int) -> UnreadableInput:
    """The error for content over a limit."""
    return unreadable(name, f"it holds more than {max_bytes >> 20} MiB", "leave it out")


def _check_bomb(size: int, compressed: int, name: str) -> None:
    if size > BOMB_BYTES and size > BOMB_RATIO * compressed:
        raise unreadable(
            name, f"{compressed >> 10} KiB of it unpack to more than {size >> 20} MiB: it is an attack", "leave it out"
        )


class Member(NamedTuple):
    """A file in an archive: `size` bytes at `offset` of the plain archive or of the copy."""

    offset: int
    size: int
    written_ns: int


@dataclass
class Archive:
    """The dumps in an archive by name, and the names of what else is in it. `copy`: descriptor of the copy, or -1."""

    name: str
    members: dict[str, Member] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    copy: int = -1
    damage: str = ""


Opener = Callable[[], IO[bytes]]
Wanted = Callable[[str, Callable[[], bytes]], bool]


def list_archive(open_file: Opener, name: str, size: int, wanted: Wanted) -> Archive:
    """The members that are wanted. Links, devices, sparse files and names that leave the archive are left out.

    Args:
        open_file: opens the archive for reading.
        name: how to call it in messages.
        size: its size in bytes.
        wanted: says by a member's name and, if it asks, its first bytes, whether it is a dump.

    Raises:
        UnreadableInput: it is no archive that can be read, or an attack.
    """
    archive = Archive(name)
    try:
        with open_file() as source:
            head = source.read(8)
            source.seek(0)
            if head.startswith(b"PK"):
                _list_zip(archive, source, wanted)
            elif compression(head):
                with decompressing(source, head, name) as plain:
                    _list_compressed(archive, _Counted(plain, size, name), wanted)
            else:
                _list_plain(archive, source, size, wanted)
    except Exception as error:
        if not is_broken(error):
            raise
        if not archive.members:
            raise unreadable(name, f"the archive cannot be read ({error})") from error
        archive.damage = f"only its first {len(archive.members)} dumps could be read ({error})"
    return archive


class _Counted:
    """Reads through, and stops where the content is far larger than its file can honestly hold, or where it is cut."""

    def __init__(self, plain: IO[bytes], compressed: int, name: str) -> None:
        self._plain, self._compressed, self._name, self._read = plain, compressed, name, 0
        self.damage = ""

    def read(self, size: int) -> bytes:
        """The next bytes; empty at the end, and where the rest is damaged."""
        try:
            data = b"" if self.damage else _some_of(self._plain, size)
        except Exception as error:
            if not is_broken(error):
                raise
            self.damage = str(error)
            return b""
        self._read += len(data)
        _check_bomb(self._read, self._compressed, self._name)
        if self._read > MAX_ARCHIVE_BYTES:
            raise too_large(self._name, MAX_ARCHIVE_BYTES)
        return data


def _is_safe(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/") and "\0" not in name


def _regular(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    last = -1
    count = 0
    while (info := tar.next()) is not None:
        count += 1
        if info.offset <= last or info.size < 0 or count > MAX_MEMBERS:
            raise ValueError("its members overlap, or are too many")
        last = info.offset
        tar.members = []  # type: ignore[attr-defined]  # else every header stays in memory
        if info.isreg() and not info.issparse() and _is_safe(info.name):
            yield info


def _list_plain(archive: Archive, source: IO[bytes], total: int, wanted: Wanted) -> None:
    import tarfile

    with tarfile.open(fileobj=source, mode="r:") as tar:
        for info in _regular(tar):
            here = info.offset_data
            if here + info.size > total:
                raise ValueError(f"{info.name} is cut")

            def head(here: int = here, size: int = info.size) -> bytes:
                back = source.tell()
                source.seek(here)
                data = source.read(min(size, HEAD_BYTES))
                source.seek(back)
                return data

            if wanted(info.name, head):
                archive.members[info.name] = Member(here, info.size, int(info.mtime * 1e9))
            else:
                archive.others.append(info.name)


def _list_compressed(archive: Archive, source: _Counted, wanted: Wanted) -> None:
    import tarfile

    with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", bufsize=_CHUNK) as tar:
        copy = _Copy(archive)
        for info in _regular(tar):
            content = tar.extractfile(info)
            start = content.read(HEAD_BYTES) if content else b""
            if content is not None and wanted(info.name, lambda start=start: start):  # type: ignore[misc]
                copy.take(info.name, start, content, info.size, int(info.mtime * 1e9))
            else:
                archive.others.append(info.name)
    if source.damage:
        raise ValueError(source.damage)


class _Copy:
    """A nameless file that holds the wanted members one after the other, until the archive is forgotten."""

    def __init__(self, archive: Archive) -> None:
        self._archive, self._end = archive, 0
        import tempfile

        number, path = tempfile.mkstemp(prefix="unhang-")
        os.unlink(path)
        archive.copy = number
        weakref.finalize(archive, os.close, number)

    def take(self, name: str, start: bytes, rest: IO[bytes], size: int, written_ns: int) -> None:
        """Copies a member, of which `start` is read already."""
        if size > MAX_DUMP_BYTES:
            raise too_large(f"{self._archive.name}:{name}", MAX_DUMP_BYTES)
        here, part = self._end, start
        while part:
            self._end += os.pwrite(self._archive.copy, part, self._end)
            part = rest.read(_CHUNK)
        if self._end - here != size:
            raise ValueError(f"{name} is cut")
        self._archive.members[name] = Member(here, size, written_ns)


def _list_zip(archive: Archive, source: IO[bytes], wanted: Wanted) -> None:
    import zipfile

    with zipfile.ZipFile(source) as bundle:
        copy = _Copy(archive)
        for info in bundle.infolist()[:MAX_MEMBERS]:
            kind = info.external_attr >> 28
            if info.is_dir() or kind not in (0, 8) or not _is_safe(info.filename):
                continue
            _check_bomb(info.file_size, info.compress_size, f"{archive.name}:{info.filename}")
            with bundle.open(info) as content:
                start = content.read(HEAD_BYTES)
                if wanted(info.filename, lambda start=start: start):  # type: ignore[misc]
                    copy.take(info.filename, start, content, info.file_size, 0)
                else:
                    archive.others.append(info.filename)


def packed_member(archive: Archive, member: str, open_file: Opener, max_bytes: int) -> bytes:
    """The content of a member, as it is.

    Raises:
        UnreadableInput: there is none of that name, it is damaged or larger than `max_bytes`.
    """
    name = f"{archive.name}:{member}"
    place = archive.members.get(member)
    if place is None:
        raise unreadable(name, "the archive holds no such dump", "find the dumps again")
    if place.size > max_bytes:
        raise too_large(name, max_bytes)
    try:
        if archive.copy >= 0:
            data = _pread(archive.copy, place)
        else:
            with open_file() as source:
                source.seek(place.offset)
                data = source.read(place.size)
    except Exception as error:
        if not is_broken(error):
            raise
        raise unreadable(name, f"it cannot be read ({error})") from error
    if len(data) != place.size:
        raise unreadable(name, "it is cut short")
    return data


def _pread(number: int, place: Member) -> bytes:
    parts, at, end = [], place.offset, place.offset + place.size
    while at < end and (part := os.pread(number, end - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
