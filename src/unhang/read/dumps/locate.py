"""Finds the dumps of a job in folders, archives and URLs of any layout, and reads one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.model import Unavailable
from unhang.read.dumps import archive, locate_content
from unhang.read.dumps.locate_content import Identity, own_rank
from unhang.read.dumps.locate_ranks import Claim, choose
from unhang.read.dumps.locate_walk import Found, archive_at, is_url, opener, walk
from unhang.read.dumps.shard import DumpFile
from unhang.read.files import read_bytes, unreadable

__all__ = ["Located", "locate", "own_rank", "read_dump"]

MAX_NAMED = 16
HEADER_BYTES = 1 << 18
MAX_LOOKED_AT_BYTES = 24 << 20


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

    Nothing raises for a file: what cannot be used is told in `absent`.
    """
    found = walk(paths)
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
    """Whose dump it is, from its beginning if that tells, else from all of it."""
    told = Identity()
    for limit in (HEADER_BYTES, MAX_LOOKED_AT_BYTES):
        try:
            data = _beginning(file, limit)
        except (UnreadableInput, OSError):
            break
        told = locate_content.identity(data)
        if told.rank is not None or len(data) < limit:
            break
    return told


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
        return archive.read_member(archive_at(file.path), file.member, opener(file.path), max_bytes)
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
