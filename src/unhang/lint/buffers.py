"""What DDP does with a module: its forward broadcasts the buffers, and where there are none, it keeps to itself; it can do without gradients that are missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from unhang.lint import known
from unhang.lint.ir import Attr, Call, Const, Expr, File, Function, Ref, calls_in, nodes_in

_MAKES = re.compile(
    rb"[Bb]atch_?[Nn]orm|InstanceNorm|\bBuffer\(|SyncBN|\bnorm_layer\b|track_running_stats|spectral_norm"
)
_REGISTERS = re.compile(rb"^([ \t]*).*register_buffer", re.MULTILINE)
# A module that is made by its name, or by somebody else, may be any.
_BY_NAME = re.compile(
    rb"import_module|__import__|instantiate\(|\bregistry\b|REGISTRY|\bRegistry\b|\beval\(|from_pretrained|hub\.load|create_model"
)
_IMPORTS = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([.\w]+)(?:[ \t]+as[ \t]+(\w+))?)",
    re.MULTILINE,
)
_TOP = re.compile(rb"^(?:(?:async[ \t]+)?def[ \t]+(\w+)|class[ \t]+(\w+)|(\w+)[ \t]*(?::[^=\n]*)?=[^=])", re.MULTILINE)
_ANY_TOP = re.compile(rb"^[^\s#)\]}]", re.MULTILINE)
_WORD = re.compile(rb"[A-Za-z_]\w*")
_PLAIN = {  # of these nothing is taken that has buffers, but for the layers above
    *("torch", "numpy", "math", "typing", "os", "sys", "re", "functools", "collections", "itertools", "random", "time", "json", "copy"),
    *("logging", "argparse", "warnings", "abc", "dataclasses", "enum", "pathlib", "inspect", "contextlib", "shutil", "glob", "pickle"),
    *("__future__", "einops", "scipy", "tqdm", "matplotlib", "librosa", "yaml", "PIL", "cv2", "pandas", "sklearn", "tensorboardX"),
    *("wandb", "datetime", "subprocess", "socket", "gc", "string", "types", "queue", "threading", "multiprocessing", "unittest", "apex"),
    *("h5py", "omegaconf", "tensorboard", "psutil", "soundfile", "datasets", "tokenizers", "sentencepiece", "accelerate", "deepspeed"),
}  # fmt: skip
_MOST_NAMES, _MOST_STEPS = 300, 5
_SHARDING = ("fsdp", "fsdp2", "engine", "accelerator", "fabric")
_DDP, _SHARDS = {"DistributedDataParallel", "DDP"}, {"FullyShardedDataParallel", "FSDP", "fully_shard"}


def finds_unused(files: Iterable[File]) -> bool:
    """Whether a project has DDP look for parameters without a gradient, and shards no module: which layers run is each rank's own affair."""
    told = False
    for file in files:
        if any(known.WRAPPERS.get(n) in _SHARDING or n.startswith("deepspeed") for n in file.names.values()):
            return False
        for f in file.functions:
            if not _SHARDS.isdisjoint(f.words):
                return False
            if not told and not _DDP.isdisjoint(f.words):
                told = any(c.given("find_unused_parameters") == Const(True) for c in calls_in(f.body))
    return told


class Buffers:
    """The texts of a project, asked for what makes buffers in them."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents
        self._paths: dict[str, str] = {}
        self._read: dict[str, tuple[bytes, dict[bytes, bytes], dict[bytes, tuple[str, bytes]]]] = {}
        self._any: bool | None = None

    def are_missing(self, path: str, functions: Iterable[Function], of: Expr, line: int) -> bool:
        """Whether a module that is wrapped in this file has no buffers, as far as its class and all that this imports can be read."""
        if not self._contents:
            return False
        name = _class_of(functions, of, line)
        if name:
            return self._is_without(path, name.partition(".")[0].encode())
        if self._any is None:
            has_modules = any(b"nn.Module" in d for d in self._contents.values())  # else they come from elsewhere
            self._any = not has_modules or any(
                _makes(d) or _BY_NAME.search(d) or self._is_foreign(p) for p, d in self._contents.items()
            )
        return not self._any

    def _is_without(self, path: str, name: bytes) -> bool:
        """Whether a class or function, and all that it names, makes none. A name without a place of its own is none of the project."""
        todo, seen = [(path, name)], {(path, name)}
        while todo:
            at, one = todo.pop()
            text, defined, imported = self._parts(at)
            block = defined.get(one) if one else text
            if block is None and one in imported:
                block = one
            if block is None:
                return False
            if _makes(block) or _BY_NAME.search(block) or len(seen) > _MOST_NAMES:
                return False
            for word in set(_WORD.findall(block)) if one else set(defined) | set(imported):
                if word in defined:
                    more = (at, word)
                elif word in imported:
                    module, member = imported[word]
                    dot = "." if member and module.strip(".") else ""
                    file = self.file_of(at, f"{module}{dot}{member.decode()}")
                    if file is None:
                        if module.strip(".").partition(".")[0] not in _PLAIN:
                            return False
                        continue
                    more = (file, b"" if not member or _is_module(file, member) else member)
                else:
                    continue
                if more not in seen:
                    seen.add(more)
                    todo.append(more)
        return True

    def _parts(self, path: str) -> tuple[bytes, dict[bytes, bytes], dict[bytes, tuple[str, bytes]]]:
        """The text of a file, what it defines at its top, each with its text, and what it imports: module and name."""
        if path not in self._read:
            data = self._contents[path]
            tops = [m.start() for m in _ANY_TOP.finditer(data)] + [len(data)]
            defined: dict[bytes, bytes] = {}
            for start, end in pairwise(tops):
                m = _TOP.match(data, start)
                if m is not None:
                    name = m[1] or m[2] or m[3]
                    defined[name] = defined.get(name, b"") + data[start:end]
            self._read[path] = data, defined, dict(_imported(data))
        return self._read[path]

    def _is_foreign(self, path: str) -> bool:
        return any(
            self.file_of(path, m) is None and m.partition(".")[0] not in _PLAIN for m in _imports(self._contents[path])
        )

    def file_of(self, path: str, full: str) -> str | None:
        """The file of a module, or of what is imported from it; None: it is none of the project."""
        if not self._paths:
            self._paths = {os.path.abspath(p): p for p in self._contents}
        bare = full.lstrip(".")
        folder = os.path.dirname(os.path.abspath(path))
        dots = len(full) - len(bare)
        for _ in range(max(dots - 1, 0)):
            folder = os.path.dirname(folder)
        parts = bare.split(".") if bare else []
        for _ in range(1 if dots else _MOST_STEPS):
            for end in (parts, parts[:-1]):
                base = os.path.join(folder, *end)
                for file in (base + ".py", os.path.join(base, "__init__.py")):
                    if (end or dots) and file in self._paths:
                        return self._paths[file]
            folder = os.path.dirname(folder)
        return None


def _makes(text: bytes) -> bool:
    """Whether buffers are made in a text. Those that are registered under a condition may be there or not."""
    if _MAKES.search(text):
        return True
    for m in _REGISTERS.finditer(text):
        before = [line for line in text[: m.start()].split(b"\n") if line.strip()]
        above = next((b for b in reversed(before) if len(b) - len(b.lstrip()) < len(m[1])), b"")
        if not above.lstrip().startswith((b"if ", b"elif ", b"else")):
            return True
    return False


def _imports(data: bytes) -> Iterable[str]:
    return (
        f"{module}{member.decode()}" if not module.strip(".") else module for _, (module, member) in _imported(data)
    )


def _imported(data: bytes) -> Iterator[tuple[bytes, tuple[str, bytes]]]:
    """Each name that is bound by an import, with its module and its name there; empty: the module itself."""
    for m in _IMPORTS.finditer(data):
        if m[1]:
            for part in re.sub(rb"[()\\\n]|#[^\n]*", b" ", m[2]).split(b","):
                words = part.split()
                if words:
                    yield words[-1], (m[1].decode(), words[0] if words[0] != b"*" else b"")
        else:
            yield m[4] or m[3].partition(b".")[0], (m[3].decode(), b"")


def _is_module(file: str, member: bytes) -> bool:
    """Whether what is imported is the file itself."""
    return (
        os.path.basename(file) == f"{member.decode()}.py" or os.path.basename(os.path.dirname(file)) == member.decode()
    )


def _class_of(functions: Iterable[Function], of: Expr, line: int, steps: int = 4) -> str:
    """The name of what was called to make a module; empty: that is not in sight."""
    made = _made(of)
    if made is not None:
        return made
    if not isinstance(of, Ref) or not steps:
        return ""
    bound = [
        n for f in functions for n in f.bindings if of in n.targets and n.value != of
        if n.line < line or "." in of.path
    ]  # fmt: skip
    names = {_class_of(functions, n.value, n.line, steps - 1) for n in bound if not _is_wrapped_again(n.value, of)}
    return names.pop() if len(names) == 1 else ""


def _made(e: Expr) -> str | None:
    """`Net(...).to(device)`: Net."""
    while isinstance(e, Call) and isinstance(e.func, Attr):
        e = e.func.base
    if isinstance(e, Call) and isinstance(e.func, Ref):
        head, _, last = e.func.path.rpartition(".")
        return e.func.path if last[:1].isupper() and "Parallel" not in last and "self" not in head else None
    return None


def _is_wrapped_again(value: Expr, of: Ref) -> bool:
    """Whether a name is bound to what is made of itself: `model = DDP(model)`, `model = model.to(device)`."""
    return any(isinstance(n, Ref) and (n == of or n.path.startswith(f"{of.path}.")) for n in nodes_in(value))
