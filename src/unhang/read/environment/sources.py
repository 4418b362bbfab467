"""Opens what may set variables: this process, another one, a script, a configuration, a log, or a folder of them."""

from __future__ import annotations

import ast
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.read.environment import MAX_VALUE, Assignment, Settings, in_scope, unquoted
from unhang.read.environment.texts import read_config, read_log, read_shell
from unhang.read.files import regular_size, unreadable
from unhang.read.logs.decode import NAMES as DOCUMENTS
from unhang.read.logs.decode import is_document, pasted, settings_in

# Variables that Python code sets: `os.environ[...] = `, setdefault, update, putenv, and `env=` dictionaries. Nothing is run.

MAX_PARSED = 4 << 20
_LINE = re.compile(
    r"environ(?:\[\s*[\"'](?P<a>\w+)[\"']\s*\]\s*=(?!=)|\.setdefault\(\s*[\"'](?P<b>\w+)[\"']\s*,)\s*(?P<value>[^#\n]*)"
)
_READ = re.compile(r"(?:getenv\(|environ\.get\()\s*[\"'](\w+)[\"']")
_ENV_NAMES = re.compile(r"(?:\w*_)?env(?:_vars?|ironment|iron|s)?(?:_\w+)?", re.IGNORECASE)
_ENV_KEYS = ("env", "env_vars", "environment", "env_variables", "environment_variables")


def read_python(text: str, path: str = "") -> Settings:
    """The variables that a Python file sets, and those that it reads itself."""
    try:
        if len(text) > MAX_PARSED:
            raise ValueError("too large to parse")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        found = _Finder()
        found.visit(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Settings(
            path, "python", tuple(_line_assignments(text)), frozenset(filter(in_scope, _READ.findall(text)))
        )
    ordered = sorted(found.assignments, key=lambda a: a.line or 0)
    return Settings(path, "python", tuple(ordered), frozenset(found.mentions))


class _Finder(ast.NodeVisitor):
    """Collects assignments and reads."""

    def __init__(self) -> None:
        self.assignments: list[Assignment] = []
        self.mentions: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                self._add(_text_of(target.slice), node.value, node.lineno)
            elif isinstance(target, ast.Name) and _ENV_NAMES.fullmatch(target.id):
                self._add_dictionary(node.value)
            elif isinstance(target, ast.Subscript) and _ENV_NAMES.fullmatch(getattr(target.value, "id", "")):
                self._add(_text_of(target.slice), node.value, node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in ("setdefault", "putenv") and len(node.args) == 2 and (name == "putenv" or _is_environ(owner)):
            self._add(_text_of(node.args[0]), node.args[1], node.lineno, is_default=name == "setdefault")
        elif name == "update" and _is_environ(owner):
            for argument in node.args:
                self._add_dictionary(argument)
            for keyword in node.keywords:
                self._add(keyword.arg or "", keyword.value, keyword.value.lineno)
        elif node.args and (name == "getenv" or (name in ("get", "pop") and _is_environ(owner))):
            self.mentions |= {n for n in [_text_of(node.args[0])] if name != "pop" and in_scope(n)}
        for keyword in node.keywords:
            if keyword.arg in _ENV_KEYS:
                self._add_dictionary(keyword.value)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load) and _is_environ(node.value) and in_scope(_text_of(node.slice)):
            self.mentions.add(_text_of(node.slice))
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and _text_of(key) in _ENV_KEYS:
                self._add_dictionary(value)
        self.generic_visit(node)

    def _add_dictionary(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            for keyword in node.keywords:
                self._add(keyword.arg or "", keyword.value, keyword.value.lineno)
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if key is not None:
                self._add(_text_of(key), value, key.lineno)

    def _add(self, name: str, value: ast.expr, line: int, is_default: bool = False) -> None:
        if not in_scope(name) or any((a.name, a.line) == (name, line) for a in self.assignments[-64:]):
            return
        text = _constant(value)
        expression = "" if text is not None else ast.unparse(value)[:200]
        self.assignments.append(Assignment(name, text, line, expression, is_default))


def _is_environ(node: ast.expr | None) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _constant(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float) and node.value is not None:
        return str(node.value)[:MAX_VALUE]
    return None


def _line_assignments(text: str) -> Iterator[Assignment]:
    """What is set, by regular expressions: in code that this Python cannot parse, and in notebooks."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("#"):
            continue
        for match in _LINE.finditer(line[: 1 << 16]):
            name, raw = match["a"] or match["b"], match["value"].strip().rstrip(",)")
            if not in_scope(name):
                continue
            literal = re.match(r"""(?:"[^"]*"|'[^']*')""", raw)
            value = unquoted(literal[0])[:MAX_VALUE] if literal else None
            yield Assignment(name, value, number, "" if literal else raw[:200], is_default=bool(match["b"]))


def read_notebook(text: str, path: str = "") -> Settings:
    """A notebook: the code in its cells, and `%env NAME=VALUE`. Lines are those of the file."""
    plain = text.replace('\\"', '"').replace("\\n", "")
    found = list(_line_assignments(plain))
    for number, line in enumerate(plain.split("\n"), 1):
        if (match := re.search(r"%env\s+(\w+)[= ]([^\"]*)", line)) and in_scope(match[1]):
            found.append(Assignment(match[1], unquoted(match[2])[:MAX_VALUE], number))
    return Settings(path, "python", tuple(found), frozenset(filter(in_scope, _READ.findall(plain))))


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
        return partial(read_config, form="json")
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
