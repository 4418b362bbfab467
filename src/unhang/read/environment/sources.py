"""Opens what may set variables: this process, another one, a script, a configuration, a log, or a folder of them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.read.document import NAMES as DOCUMENTS
from unhang.read.document import is_document, pasted, settings_in
from unhang.read.environment.python_code import read_notebook, read_python
from unhang.read.environment.settings import MAX_VALUE, Assignment, Settings
from unhang.read.environment.tables import in_scope
from unhang.read.environment.texts import read_config, read_json_text, read_log, read_shell
from unhang.read.files import regular_size, unreadable

MAX_BYTES = 32 << 20
MAX_IN_FOLDER = 4 << 20
MAX_FILES = 5000
BUNDLED = "job.json"  # of a bundle: it keeps the environment of the job
INTERFACES = Path("/sys/class/net")
PROC = Path("/proc")


def read_document(text: str, path: str = "") -> Settings:
    """The variables that a document (Markdown) tells people to set, and those of output that is pasted into it."""
    parts = parts_of_document(text, path)
    found = sorted((a for part in parts for a in part.assignments), key=lambda a: a.line or 0)
    return Settings(path, "document", tuple(found))


def parts_of_document(text: str, path: str = "") -> list[Settings]:
    """The same, each fence for itself, as commands of two fences are mostly alternatives."""
    lines, found = text.splitlines(), []
    for first, part, is_python in settings_in(lines):
        read = (read_python if is_python else read_shell)(part, path)
        moved = tuple(replace(a, line=(a.line or 1) + first - 1) for a in read.assignments)
        launches = tuple(replace(x, line=x.line + first - 1) for x in read.launches)
        found.append(Settings(path, "document", moved, read.mentions, launches))
    printed = dict(pasted(list(enumerate(lines, 1))))
    told = read_log("\n".join(printed.get(number, "") for number in range(1, len(lines) + 1)), path).assignments
    known = {(a.name, a.line) for part in found for a in part.assignments}
    return [*found, Settings(path, "document", tuple(a for a in told if (a.name, a.line) not in known))]


_Reader = Callable[[str, str], Settings]
_BY_SUFFIX: Mapping[str, _Reader] = {
    **dict.fromkeys((".sh", ".bash", ".zsh", ".csh", ".tcsh", ".fish", ".ksh"), read_shell),
    **dict.fromkeys((".sbatch", ".slurm", ".pbs", ".lsf", ".job", ".qsub", ".env", ".dockerfile", ".conf"), read_shell),
    **dict.fromkeys((".py", ".pyi"), read_python),
    **dict.fromkeys((".yaml", ".yml", ".toml", ".ini", ".cfg"), read_config),
    **dict.fromkeys((".log", ".out", ".err"), read_log),
    ".ipynb": read_notebook,
}
_SHELL_NAMES = re.compile(
    r"(?:Docker|Container|Make)file(?:\..*)?|\.?env(?:\..*)?|\.deepspeed_env|\.?(?:bash_?)?profile|\.bashrc"
)
_NAMED_ONLY = (".json", ".jsonc")  # in a folder these are mostly data
_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env", "build", "dist"})
_LOOKS_LIKE_LOG = re.compile(
    r"NCCL (?:INFO|WARN)|^\s*\+{1,4} export |Traceback \(most recent|^\[?rank\d+", re.MULTILINE
)
# What every file that sets a variable of ours, or starts a launcher, has in it.
_RELEVANT = re.compile(
    rb"NCCL|TORCH|GLOO_|CUDA_|OMP_|MKL_|MASTER_|RANK|WORLD_SIZE|PET_|USE_LIBUV|TP_SOCKET|torchrun|torch\.dist|accelerate"
)
_ENVIRON = re.compile(rb"(?:[A-Za-z_][^=\0]{0,200}=[^\0]*(?:\0|$))+", re.DOTALL)


def of_process(environment: Mapping[str, str], path: str = "this process") -> Settings:
    """The environment of a process."""
    found = [Assignment(n, v[:MAX_VALUE], reported_by=path) for n, v in sorted(environment.items()) if in_scope(n)]
    return Settings(path, "process", tuple(found))


def of_pid(pid: int) -> Settings:
    """The environment that a process was started with, from /proc. What it has changed since is not seen.

    Raises:
        UnreadableInput: there is no such process, or it belongs to somebody else.
    """
    path = PROC / str(pid) / "environ"
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise unreadable(f"process {pid}", "there is no such process", "check the number") from error
    except OSError as error:
        advice = "ask as its user, or as root"
        raise unreadable(f"process {pid}", error.strerror or str(error), advice) from error
    return of_process(_variables(data), f"process {pid}")


def _variables(data: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in data.decode("utf-8", "replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def interfaces_here() -> frozenset[str] | None:
    """The network interfaces of this machine; None where they cannot be told."""
    try:
        return frozenset(path.name for path in INTERFACES.iterdir()) or None
    except OSError:
        return None


def read_source(path: Path) -> Settings:
    """The variables that one file sets.

    Raises:
        UnreadableInput: it is missing, binary, too large, or no file.
    """
    data = _bytes(path)
    if not _RELEVANT.search(data) and b"\0" not in data:
        return Settings(str(path), "text")
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        if _ENVIRON.fullmatch(data):
            return of_process(_variables(data), str(path))
        raise unreadable(str(path), "it is binary", "give scripts, configurations, logs or environ files")
    text = _text(data)
    return _reader(path, text)(text, str(path))


def _text(data: bytes) -> str:
    return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace")


def _bytes(path: Path) -> bytes:
    """The content; a file of /proc has no size to go by."""
    if path.name == "environ" and str(path).startswith(f"{PROC}/"):
        try:
            return path.read_bytes()
        except OSError as error:
            raise unreadable(str(path), error.strerror or str(error), "ask as its user") from error
    if regular_size(path) > MAX_BYTES and path.suffix not in (".log", ".out", ".err", ".txt"):
        raise unreadable(str(path), f"it is larger than {MAX_BYTES >> 20} MiB", "leave it out")
    try:
        with path.open("rb") as f:
            return f.read(MAX_BYTES)
    except OSError as error:
        raise unreadable(str(path), error.strerror or str(error), "check its permissions") from error


def _reader(path: Path, text: str) -> _Reader:
    if _SHELL_NAMES.fullmatch(path.name):
        return read_shell
    if path.suffix.lower() in _NAMED_ONLY:
        return read_json_text
    if path.suffix.lower() in DOCUMENTS:  # one that is named: in a folder they are run books
        return read_document
    if found := _BY_SUFFIX.get(path.suffix.lower()):
        return found
    head = text[: 1 << 16]
    if head.startswith("#!"):
        return read_python if "python" in head.split("\n", 1)[0] else read_shell
    if "#" in head and is_document(head.splitlines(), path.name):
        return read_document
    return read_log if _LOOKS_LIKE_LOG.search(head) else read_shell


def files_below(folder: Path) -> Iterator[Path]:
    """Files below a folder that may set variables, in order; hidden folders and installed packages are left out."""
    count = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        for name in sorted(names):
            path = Path(parent, name)
            is_known = path.suffix.lower() in _BY_SUFFIX or _SHELL_NAMES.fullmatch(name) or name == BUNDLED
            if is_known and _is_small(path):
                count += 1
                if count > MAX_FILES:
                    return
                yield path


def _is_small(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and 0 < status.st_size <= MAX_IN_FOLDER


def read_sources(paths: list[Path]) -> tuple[list[Settings], list[UnreadableInput]]:
    """What files and folders set, and what could not be read of the files that were named."""
    found: list[Settings] = []
    failed: list[UnreadableInput] = []
    for path in paths:
        for file in files_below(path) if path.is_dir() else [path]:
            try:
                source = read_source(file)
                is_whole = source.form != "document"
                found += [source] if is_whole else parts_of_document(_text(_bytes(file)), str(file))
            except UnreadableInput as error:
                if file == path:
                    failed.append(error)
    return found, failed
