"""What was read and found before, by the content of files, in `.unhang_cache/lint`. A cache that cannot be used is none."""

from __future__ import annotations

import os
import sys
from functools import cache as once
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

import msgspec

from unhang import __version__
from unhang.lint.ir import VERSION, File

FOLDER = Path(".unhang_cache") / "lint"
_MOST_RESULTS = 8
_FILES = msgspec.msgpack.Decoder(dict[str, tuple[bytes, bytes]])
_RESULT = msgspec.msgpack.Decoder(list[File])


@once
def _engine() -> str:
    """Which code this is: another one would find other things."""
    digest = blake2b(f"{__version__} {VERSION} {sys.version_info[:2]}".encode(), digest_size=8)
    folder = files("unhang.lint")
    for file in sorted([*folder.iterdir()], key=lambda f: f.name):
        if file.name.endswith(".py"):
            digest.update(file.read_bytes())
    return digest.hexdigest()


class Cache:
    """One folder of it."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder / _engine()

    def result(self, key: str) -> list[File] | None:
        """All that was found in just these files before."""
        try:
            return _RESULT.decode((self._folder / f"result-{key}").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None

    def keep_result(self, key: str, found: list[File]) -> None:
        """Keeps what was found; the oldest of the results go."""
        self._write(f"result-{key}", msgspec.msgpack.encode(found))
        try:
            old = sorted(self._folder.glob("result-*"), key=lambda p: p.stat().st_mtime)
            for path in old[:-_MOST_RESULTS]:
                path.unlink(missing_ok=True)
        except OSError:
            pass

    def files(self, digests: dict[str, bytes]) -> dict[str, bytes]:
        """What is kept of those files that have not changed."""
        kept = self._kept()
        return {p: kept[p][1] for p, d in digests.items() if p in kept and kept[p][0] == d}

    def _kept(self) -> dict[str, tuple[bytes, bytes]]:
        try:
            return _FILES.decode((self._folder / "files").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return {}

    def keep_files(self, digests: dict[str, bytes], encoded: dict[str, bytes]) -> None:
        """Keeps what was read, beside what is known of other files that still exist."""
        others = {p: v for p, v in self._kept().items() if p not in encoded and os.path.exists(p)}
        self._write("files", msgspec.msgpack.encode(others | {p: (digests[p], e) for p, e in encoded.items()}))

    def _write(self, name: str, content: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            mark = self._folder.parent.parent / ".gitignore"
            if not mark.exists():
                mark.write_text("*\n")
            part = self._folder / f"{name}.{os.getpid()}"
            part.write_bytes(content)
            part.replace(self._folder / name)
        except OSError:  # a full or read-only disk: the next run reads again
            pass
