"""`unhang lint` as a whole: files found, read in several processes or taken from the cache (`.unhang_cache/lint`), linked, judged."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache as once
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

import msgspec

from unhang import __version__
from unhang.errors import NotEvidence
from unhang.lint.cards import LintSettings
from unhang.lint.ir import VERSION, EncodedFile, File, Found, encode
from unhang.lint.link import Link
from unhang.lint.reading import deep_and_quick, may_help, package_of, read_file
from unhang.lint.sharing import findings

_SKIPPED = {"__pycache__", "node_modules", "venv", "env", "site-packages", "build", "dist", "unhang-reports"}
_LARGEST = 20_000_000  # bytes; a larger file is data
_ALONE = 300_000  # bytes that one process reads faster than several could be started
_GIVEN = re.compile(rb"\b(?:import|,|\()[ \t]*(\w{4,})")  # what may be imported here
_ROUNDS = 3  # files that lead to a collective by way of other such files
_SMALL = 1_000_000  # bytes beside what is worth a look anyway: so few are read as well
_CHUNK = 200_000  # bytes for one process at a time
FOLDER = Path(".unhang_cache") / "lint"
_MOST_RESULTS = 8
_FILES = msgspec.msgpack.Decoder(dict[str, tuple[bytes, bytes]])
_RESULT = msgspec.msgpack.Decoder(list[File])


@dataclass
class LintResult:
    """What was found; `unread`: file -> reason; `lines`: of all files; `silenced`: findings that a comment put away; `far`: that more calls lead to than asked for."""

    found: list[tuple[str, Found]] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    files: int = 0
    lines: int = 0
    silenced: int = 0
    far: int = 0


def lint_paths(paths: Sequence[str], settings: LintSettings, cache: Cache | None, jobs: int = 0) -> LintResult:
    """Judges files and folders.

    Raises:
        NotEvidence: a path does not exist.
    """
    found_files = list(python_files(paths, settings))
    contents: dict[str, bytes] = {}
    unread: dict[str, str] = {}
    for path in found_files:
        data = _bytes(path, unread)
        if data is not None:
            contents[path] = data
    return _with_result(contents, unread, settings, cache, jobs)


def lint_text(path: str, data: bytes, settings: LintSettings) -> LintResult:
    """Judges one text that is no file."""
    return _with_result({path: data}, {}, settings, None, 1)


def _bytes(path: str, unread: dict[str, str]) -> bytes | None:
    try:
        if os.path.getsize(path) > _LARGEST:
            unread[path] = "it is larger than 20 MB: data, not a program"
            return None
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        unread[path] = error.strerror or str(error)
        return None


def _with_result(
    contents: dict[str, bytes], unread: dict[str, str], settings: LintSettings, cache: Cache | None, jobs: int
) -> LintResult:
    package_of.cache_clear()
    digests = {path: blake2b(data, digest_size=16).digest() for path, data in contents.items()}
    key = blake2b(
        b"".join(p.encode("utf-8", "surrogatepass") + d for p, d in sorted(digests.items())), digest_size=16
    ).hexdigest()
    files = cache.result(key) if cache else None
    if files is None:
        with deep_and_quick():
            files = _judged(contents, digests, cache, jobs)
        if cache:
            cache.keep_result(key, files)
    result = LintResult(files=len(contents) + len(unread), unread=unread)
    for file in files:
        result.lines += file.lines
        if file.reason:
            unread[file.path] = file.reason
        for found in file.found:
            if not settings.wants(file.path, found.code):
                continue
            silenced = file.quiet.get(found.line)
            if silenced is not None and (not silenced or found.code in silenced):
                result.silenced += 1
            elif found.calls > settings.depth:
                result.far += 1
            else:
                result.found.append((file.path, found))
    result.found.sort(key=lambda pf: (pf[0], pf[1].line, pf[1].column, pf[1].code))
    return result


def _judged(contents: dict[str, bytes], digests: dict[str, bytes], cache: Cache | None, jobs: int) -> list[File]:
    """Every file with all its findings, those of the link among them."""
    known = cache.files(digests) if cache else {}
    files = {path: EncodedFile.decode(known[path]) for path in contents if path in known}
    encoded = dict(known)
    missing = {path: data for path, data in contents.items() if path not in files}
    for file, packed in _read_all(missing, jobs, False):
        files[file.path], encoded[file.path] = file, packed
    link = Link([files[p] for p in sorted(files)], contents)
    rest = {p: contents[p] for p, f in files.items() if not f.is_parsed and not f.reason}
    is_small = link.project.files and sum(map(len, rest.values())) < _SMALL
    given: dict[str, frozenset[bytes]] = {}
    wanted = rest if is_small else _callers(link, rest, given) | _helpers(link, files, contents)
    is_more = bool(missing or wanted)
    for _ in range(_ROUNDS if wanted else 0):
        for file, packed in _read_all(wanted, jobs, True):
            files[file.path], encoded[file.path] = file, packed
        link = Link([files[p] for p in sorted(files)], contents)
        rest = {p: data for p, data in rest.items() if p not in wanted}
        wanted = _callers(link, rest, given)  # of those that call by way of them
        if not wanted:
            break
    if cache and is_more:
        cache.keep_files(digests, encoded)
    out = {
        p: File(p, f.module, f.lines, f.is_parsed, f.reason, found=list(f.found), quiet=f.quiet)
        for p, f in files.items()
    }
    for path, one in findings(link, jobs):
        out[path].found.append(one)
    return [out[p] for p in sorted(out)]


def _callers(link: Link, rest: dict[str, bytes], given: dict[str, frozenset[bytes]]) -> dict[str, bytes]:
    """Files without a hint of their own that import a function which may make collectives. `given`: what may be imported in each, found once."""
    names = {name.encode() for name in link.makers() if len(name) > 3}
    if not names:
        return {}
    given |= {p: frozenset(_GIVEN.findall(data)) for p, data in rest.items() if p not in given}
    return {p: data for p, data in rest.items() if not names.isdisjoint(given[p])}


def _helpers(link: Link, files: dict[str, File], contents: dict[str, bytes]) -> dict[str, bytes]:
    """Files without a hint of their own in which a class that is imported may count bad epochs, average losses or give each rank its share."""
    useful = {p for p, f in files.items() if not f.is_parsed and not f.reason and may_help(contents[p])}
    splits = map(os.path.split, useful)
    stems = {os.path.basename(folder) if name == "__init__.py" else name[:-3] for folder, name in splits}
    found: set[str | None] = set()
    for path, file in files.items() if stems else ():
        for full in file.names.values() if file.is_parsed else ():
            if not stems.isdisjoint(full.split(".")[-2:]):
                found.add(link.buffers.file_of(path, full))
    return {p: contents[p] for p in sorted(useful & found)}


def _read_all(contents: dict[str, bytes], jobs: int, is_wanted: bool) -> Iterator[tuple[File, bytes]]:
    jobs = jobs or len(os.sched_getaffinity(0))
    total = sum(map(len, contents.values()))
    if jobs > 1 and total > _ALONE:
        try:
            with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
                for packed in pool.map(_read_chunk, [(chunk, is_wanted) for chunk in _chunks(contents)]):
                    yield from ((EncodedFile.decode(one), one) for one in packed)
            return
        except BrokenProcessPool:  # a process was ended, for want of memory perhaps: one alone needs less
            pass
    for path, data in contents.items():
        one = encode(read_file(path, data, is_wanted))
        yield EncodedFile.decode(one), one


def _chunks(contents: dict[str, bytes]) -> Iterator[list[tuple[str, bytes]]]:
    chunk: list[tuple[str, bytes]] = []
    size = 0
    for path, data in sorted(contents.items(), key=lambda pd: -len(pd[1])):
        chunk.append((path, data))
        size += len(data)
        if size > _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _read_chunk(given: tuple[list[tuple[str, bytes]], bool]) -> list[bytes]:
    chunk, is_wanted = given
    return [encode(read_file(path, data, is_wanted)) for path, data in chunk]


def python_files(paths: Sequence[str], settings: LintSettings) -> Iterator[str]:
    """The files that are meant, each once.

    Raises:
        NotEvidence: a path does not exist.
    """
    seen: set[str] = set()
    for path in paths:
        if not os.path.exists(path):
            raise NotEvidence(f"{path}: no such file or folder")
        for file in _below(path, settings) if os.path.isdir(path) else [path]:
            if file not in seen:
                seen.add(file)
                yield file


def _below(folder: str, settings: LintSettings) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(
            d for d in folders
            if d not in _SKIPPED and not d.startswith(".") and not settings.excludes(os.path.join(base, d))
        )  # fmt: skip
        for name in sorted(names):
            path = os.path.join(base, name)
            if name.endswith((".py", ".ipynb")) and not settings.excludes(path) and os.path.isfile(path):
                yield path


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
