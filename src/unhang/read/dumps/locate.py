"""Finds the dumps of a job in folders, archives and URLs of any layout, and reads one.

Dumps are known by their names, else by their first bytes (`identity`); where several claim one
rank, `claims` decides.
"""

from __future__ import annotations

import importlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from unhang.errors import UnreadableInput
from unhang.model import Unavailable
from unhang.read.dumps import DumpFile, archive, identity
from unhang.read.dumps.claims import Claim, Found, choose
from unhang.read.dumps.identity import Identity, Named
from unhang.read.files import read_bytes, unreadable

MAX_DEPTH = 24
MAX_NAMED = 16
HEADER_BYTES = 1 << 18
MAX_LOOKED_AT_BYTES = 24 << 20
_SKIPPED_FOLDERS = frozenset(("__pycache__",))


@dataclass(frozen=True)
class Located:
    """The dumps that were found.

    `files`: one per rank, by rank. `older`: dumps that later ones replace. `others`: files that are no dumps.
    `absent`: what was left out, and why. `replicas`: where several jobs with equal ranks were found, the files of each;
    `files` are then those of the first.
    """

    files: tuple[DumpFile, ...] = ()
    older: tuple[DumpFile, ...] = ()
    others: tuple[str | Path, ...] = ()
    absent: tuple[Unavailable, ...] = ()
    replicas: Mapping[str, tuple[DumpFile, ...]] = field(default_factory=dict)


def locate(paths: Sequence[str | Path]) -> Located:
    """The dumps under folders, in files, archives and URLs, and in files whose names begin like a path that is none.

    Nothing raises for a file: what cannot be used stands in `absent`.
    """
    found = _Walk()
    for path in paths:
        found.add(path)
    choice = choose(found.found, _identify)
    notes = [*found.absent, *choice.notes]
    empty = choose(found.empty, lambda _: Identity()).files if found.empty else {}
    for rank, claim in sorted(empty.items()):
        if rank not in choice.files or claim.generation > choice.files[rank].generation:
            what = f"dump of rank {rank}"
            notes.append(Unavailable(what, f"{claim.file.path} is empty: its process ended before it was written"))
    return Located(
        files=_files(choice.files),
        older=tuple(_file(c.number or 0, c) for c in choice.older),
        others=tuple(found.others),
        absent=tuple(_few(notes)),
        replicas={name: _files(part) for name, part in choice.jobs.items()},
    )


def _files(chosen: Mapping[int, Claim]) -> tuple[DumpFile, ...]:
    return tuple(_file(rank, chosen[rank]) for rank in sorted(chosen))


def _file(rank: int, claim: Claim) -> DumpFile:
    file = claim.file
    return DumpFile(rank, file.path, file.member, file.size, file.written_ns)


def _few(notes: Sequence[Unavailable]) -> Iterable[Unavailable]:
    """The first ones, and how many more there are."""
    yield from notes[:MAX_NAMED]
    if len(notes) > MAX_NAMED:
        more = notes[MAX_NAMED:]
        yield Unavailable(f"{len(more)} more files or folders", f"left out like those before: {more[0].reason}")


def _identify(file: Found) -> Identity:
    """Whose dump it is, from its beginning if that says it, else from all of it."""
    known = Identity()
    for limit in (HEADER_BYTES, MAX_LOOKED_AT_BYTES):
        try:
            data = _beginning(file, limit)
        except (UnreadableInput, OSError):
            break
        known = identity.identity(data)
        if known.rank is not None or len(data) < limit:
            break
    return known


def _beginning(file: Found, limit: int) -> bytes:
    if not file.member and not is_url(file.path):
        with open(file.path, "rb") as source:
            data = source.read(limit)
        if not archive.compression(data):
            return data
    return read_dump(DumpFile(-1, file.path, file.member, file.size, file.written_ns), MAX_LOOKED_AT_BYTES)


def read_dump(file: DumpFile, max_bytes: int = archive.MAX_DUMP_BYTES) -> bytes:
    """The whole content of a dump, decompressed.

    Raises:
        UnreadableInput: it is gone, damaged, empty, or larger than `max_bytes`.
    """
    if file.member:
        packed = archive.packed_member(archive_at(file.path), file.member, opener(file.path), max_bytes)
        return archive.decompress(packed, str(file), max_bytes)
    if not is_url(file.path):
        return archive.decompress(read_bytes(Path(file.path), max_bytes), file.path, max_bytes)
    try:
        with opener(file.path)() as source:
            data = source.read(max_bytes + 1)
    except UnreadableInput:
        raise
    except Exception as error:
        raise unreadable(file.path, f"it cannot be read ({error})") from error
    if not data:
        raise unreadable(file.path, "it is empty")
    return archive.decompress(data, file.path, max_bytes)


@dataclass
class _Walk:
    """What was found so far."""

    found: list[Found] = field(default_factory=list)
    empty: list[Found] = field(default_factory=list)
    others: list[str | Path] = field(default_factory=list)
    absent: list[Unavailable] = field(default_factory=list)
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def add(self, given: str | Path) -> None:
        """A folder, a file, the beginning of file names, or a URL."""
        if is_url(str(given)):
            self._add_url(str(given))
            return
        path = os.path.abspath(os.path.expanduser(str(given).removeprefix("file://")))
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            if not self._add_prefix(path):
                reason = getattr(error, "strerror", None) or str(error)
                self.absent.append(Unavailable(path, f"{path}: {reason}; check the path"))
            return
        if stat.S_ISDIR(status.st_mode):
            self._add_folder(path)
        elif stat.S_ISREG(status.st_mode):
            folder, name = os.path.split(path)
            self._add_file(path, name, _folders(folder), status)
        else:
            self.absent.append(Unavailable(path, "it is not a plain file; leave it out"))

    def _add_prefix(self, path: str) -> bool:
        """Files whose names begin like this: what torch is given is such a beginning."""
        folder, start = os.path.split(path)
        try:
            names = [e.name for e in os.scandir(folder) if start and e.name.startswith(start) and e.is_file()]
        except (OSError, ValueError):
            return False
        for name in sorted(names):
            self.add(os.path.join(folder, name))
        return bool(names)

    def _add_folder(self, top: str) -> None:
        folders: list[tuple[str, int]] = [(top, 0)]
        linked: list[tuple[str, int]] = []
        while folders or linked:
            folder, depth = folders.pop() if folders else linked.pop()
            try:
                status = os.stat(folder)
                entries = sorted(os.scandir(folder), key=lambda e: e.name)
            except OSError as error:
                self.absent.append(Unavailable(f"folder {folder}", f"{error.strerror}; check its permissions"))
                continue
            if (status.st_dev, status.st_ino) in self._seen:
                continue
            self._seen.add((status.st_dev, status.st_ino))
            if depth > MAX_DEPTH:
                self.absent.append(Unavailable(f"folder {folder}", f"it is more than {MAX_DEPTH} folders deep"))
                continue
            parts = _folders(folder)
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS:
                    continue
                if entry.is_dir():
                    # Links last: what they lead to has a name of its own, which says more.
                    (linked if entry.is_symlink() else folders).append((entry.path, depth + 1))
                else:
                    self._add_entry(entry, parts)

    def _add_entry(self, entry: os.DirEntry[str], folders: tuple[str, ...]) -> None:
        if identity.is_unfinished(entry.name):
            return
        try:
            status = entry.stat()
        except OSError as error:
            self.absent.append(Unavailable(entry.path, f"{error.strerror}; it may be a link that leads nowhere"))
            return
        if stat.S_ISREG(status.st_mode):
            self._add_file(entry.path, entry.name, folders, status)

    def _add_file(self, path: str, name: str, folders: tuple[str, ...], status: os.stat_result) -> None:
        key = (status.st_dev, status.st_ino)
        if key in self._seen:
            return
        self._seen.add(key)
        if identity.is_archive(name):
            self._add_archive(path, folders)
            return
        self._take(
            Found(path, "", folders, identity.named(name), status.st_size, status.st_mtime_ns),
            name,
            lambda: _head_of(path),
        )

    def _take(self, file: Found, name: str, head: Callable[[], bytes]) -> None:
        if not file.size:
            if file.name.known or ("rank" in name and not identity.is_other(name)):
                self.empty.append(file)
            return
        try:
            is_dump = _is_dump(file.name, name, head)
        except OSError as error:
            self.absent.append(Unavailable(str(file.path), f"{error.strerror}; check its permissions"))
            return
        if is_dump:
            self.found.append(file)
        else:
            self.others.append(file.path if is_url(file.path) else Path(file.path))

    def _add_archive(self, path: str, folders: tuple[str, ...]) -> None:
        try:
            content = archive_at(path)
        except UnreadableInput as error:
            self.absent.append(Unavailable(f"archive {path}", str(error)))
            return
        stem = path.rsplit("/", 1)[-1].split(".tar", 1)[0]
        for name, member in content.members.items():
            *inner, last = [part for part in name.split("/") if part not in ("", ".")]
            place = (*folders, stem, *inner)
            found = Found(path, name, place, identity.named(last), member.size, member.written_ns)
            (self.found if member.size else self.empty).append(found)
        if content.damage:
            self.absent.append(Unavailable(f"part of {path}", content.damage))
        if content.others:
            shown = ", ".join(content.others[:3]) + (", ..." if len(content.others) > 3 else "")
            reason = f"{path}: {shown} not read, since no dump has such a name; unpack it, or give the archive by its own name"
            self.absent.append(Unavailable(f"archive {path}", reason))

    def _add_url(self, url: str) -> None:
        try:
            system, path = file_system(url)
            listed: dict[str, dict[str, Any]] = system.find(path, detail=True)
        except UnreadableInput as error:
            self.absent.append(Unavailable(url, str(error)))
            return
        except Exception as error:  # noqa: BLE001  each store has errors of its own
            self.absent.append(Unavailable(url, f"it cannot be listed ({' '.join(str(error).split())[:200]})"))
            return
        if not listed:
            self.absent.append(Unavailable(url, "nothing is there; check the URL"))
        for at, info in sorted(listed.items()):
            self._add_remote(system.unstrip_protocol(at), at, info)

    def _add_remote(self, url: str, at: str, info: dict[str, Any]) -> None:
        *folders, name = at.strip("/").split("/")
        if identity.is_unfinished(name) or any(f.startswith(".") or f in _SKIPPED_FOLDERS for f in (*folders, name)):
            return
        size, written_ns = int(info.get("size") or 0), _written_ns(info)
        if identity.is_archive(name):
            self._add_archive(url, tuple(folders))
            return
        file = Found(url, "", tuple(folders), identity.named(name), size, written_ns)
        self._take(file, name, lambda: _head_of(url))


def is_url(path: str) -> bool:
    """Whether a path is a URL for fsspec."""
    return "://" in path and not path.startswith("file://")


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        UnreadableInput: fsspec, or what it needs for this kind of URL, is not installed.
    """
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise unreadable(url, "reading URLs needs fsspec", "pip install 'unhang[analyze]'") from error
    try:
        system, path = core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise unreadable(url, str(error), "install what it names, or copy the files to a local folder") from error
    return system, path


def opener(path: str) -> Callable[[], IO[bytes]]:
    """Opens a local file or a URL for reading."""
    if not is_url(path):
        return lambda: open(path, "rb")
    system, at = file_system(path)
    return lambda: cast(IO[bytes], system.open(at, "rb"))


def archive_at(path: str) -> archive.Archive:
    """The dumps in an archive; listed once in a process, as long as the file stays the same.

    Raises:
        UnreadableInput: it cannot be read.
    """
    if is_url(path):
        return _listed(path, 0, 0)
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error), "check the path") from error
    return _listed(path, status.st_size, status.st_mtime_ns)


@lru_cache(8)
def _listed(path: str, size: int, written_ns: int) -> archive.Archive:
    if is_url(path):
        system, at = file_system(path)
        size = int(system.size(at) or 0)
    return archive.list_archive(opener(path), path, size, _is_wanted)


def _is_wanted(member: str, head: Callable[[], bytes]) -> bool:
    parts = member.split("/")
    if identity.is_unfinished(parts[-1]) or any(p.startswith(".") and p != "." for p in parts):
        return False
    return _is_dump(identity.named(parts[-1]), parts[-1], head)


def _is_dump(name: Named, text: str, head: Callable[[], bytes]) -> bool:
    """By name where only dumps are called so; a JSON file may also be a trace of the profiler."""
    if identity.is_other(text):
        return False
    if name.known and ".json" not in name.suffix.lower():
        return True
    start = head()
    if archive.compression(start):
        start = archive.first_bytes(start, text)
    return identity.is_dump(start)


def _head_of(path: str) -> bytes:
    with opener(path)() as f:
        return f.read(archive.HEAD_BYTES)


@lru_cache(1 << 14)
def _folders(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _written_ns(info: dict[str, Any]) -> int:
    """When a file was written; each store calls that differently."""
    for key in ("mtime", "LastModified", "last_modified", "modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return int(value * 1e9)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1e9)
    return 0
