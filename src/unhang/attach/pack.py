"""A report or a bundle as one file to send to somebody: without secrets, and small enough to be sent."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from unhang.errors import CannotWrite, NotEvidence
from unhang.read.redact import redact_text
from unhang.read.runs import BUNDLE, REPORTS, has_bundle

MAX_FILES, MAX_FILE_BYTES, MAX_BYTES = 20_000, 64 << 20, 512 << 20
_TEXT = (".json", ".jsonl", ".txt", ".log", ".html")
_LEFT_OUT = (".lock", ".tmp", ".sock")


class Packed(NamedTuple):
    """What went into the file: names with sizes, and what was left out, with the reason."""

    files: list[tuple[str, int]]
    left_out: list[tuple[str, str]]


def pack(folder: Path, output: IO[bytes], name: str = "unhang-bundle") -> Packed:
    """Writes a report folder, or a bundle, as a tar.gz: plain files alone, and secrets in text replaced.

    Raises:
        NotEvidence: nothing of `unhang` is in the folder. OSError: the file cannot be written.
    """
    if not has_bundle(folder):
        raise NotEvidence(f"{folder}: there is no report and no bundle of unhang in it")
    with tarfile.open(fileobj=output, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        return _add(archive, folder, name)


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> Packed:
    packed, total = Packed([], []), 0
    for path in _files(folder):
        inner = str(path.relative_to(folder))
        if (why := _unwanted(path, total, len(packed.files))) is not None:
            packed.left_out.append((inner, why))
            continue
        data = _content(path)
        info = tarfile.TarInfo(f"{name}/{inner}")
        info.size, info.mtime, info.mode = len(data), int(path.stat().st_mtime), 0o644
        archive.addfile(info, io.BytesIO(data))
        packed.files.append((inner, len(data)))
        total += len(data)
    return packed


def pack_folders(folders: Sequence[Path], output: IO[bytes]) -> None:
    """Several bundles as one tar.gz, each below its own name."""
    with tarfile.open(fileobj=output, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for folder in folders:
            _add(archive, folder, folder.name)


def _files(folder: Path) -> Iterator[Path]:
    """Regular files: those of the bundle, of the other nodes beside it, and the reports; not what somebody else put there."""
    is_report = (folder / BUNDLE).is_dir()
    roots = [folder / BUNDLE, *sorted(folder.glob(f"*/{BUNDLE}"))] if is_report else [folder]
    if is_report:
        yield from (folder / name for name in REPORTS if (folder / name).is_file())
    for root in roots:
        for parent, folders, names in os.walk(root):
            folders.sort()
            for path in (Path(parent, name) for name in sorted(names)):
                if path.is_file() and not path.is_symlink() and not path.name.endswith(_LEFT_OUT):
                    yield path


def _unwanted(path: Path, total: int, count: int) -> str | None:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        return f"it is larger than {MAX_FILE_BYTES >> 20} MiB"
    if total + size > MAX_BYTES or count >= MAX_FILES:
        return f"the bundle would be larger than {MAX_BYTES >> 20} MiB or have more than {MAX_FILES} files"
    return None


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix in _TEXT or path.name.startswith("output"):
        return redact_text(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return data


def pack_to(folder: Path, target: Path) -> tuple[Packed, int]:
    """The same into a file, whole or not at all. Returns what is in it, and its size.

    Raises:
        NotEvidence: see `pack`. CannotWrite: the file cannot be written.
    """
    unfinished = target.with_name(f".{target.name}.tmp")
    try:
        with unfinished.open("wb") as file:
            packed = pack(folder, file)
        unfinished.replace(target)
        return packed, target.stat().st_size
    except OSError as error:
        raise CannotWrite(f"{target}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
