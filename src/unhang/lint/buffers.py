"""Which modules have buffers: the forward of DDP broadcasts these, and where there are none, it keeps to itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from unhang.lint.ir import Attr, Call, Expr, Function, Ref, Set, nodes_in

_MAKES = re.compile(rb"register_buffer|[Bb]atch_?[Nn]orm|InstanceNorm|\bBuffer\(|SyncBN|\bnorm_layer\b|track_running_stats|spectral_norm")
# A module that is made by its name, or by somebody else, may be any.
_BY_NAME = re.compile(
    rb"import_module|__import__|instantiate\(|\bregistry\b|REGISTRY|\bRegistry\b|\beval\(|from_pretrained|hub\.load|create_model"
)
_IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+([^\n]*)|import[ \t]+([.\w]+))", re.MULTILINE)
_PLAIN = {  # of these nothing is taken that has buffers, but for the layers above
    *("torch", "numpy", "math", "typing", "os", "sys", "re", "functools", "collections", "itertools", "random", "time", "json", "copy"),
    *("logging", "argparse", "warnings", "abc", "dataclasses", "enum", "pathlib", "inspect", "contextlib", "shutil", "glob", "pickle"),
    *("__future__", "einops", "scipy", "tqdm", "matplotlib", "librosa", "yaml", "PIL", "cv2", "pandas", "sklearn", "tensorboardX"),
    *("wandb", "datetime", "subprocess", "socket", "gc", "string", "types", "queue", "threading", "multiprocessing", "unittest", "apex"),
    *("h5py", "omegaconf", "tensorboard", "psutil", "soundfile", "datasets", "tokenizers", "sentencepiece", "accelerate", "deepspeed"),
}  # fmt: skip
_MOST_FILES, _MOST_STEPS = 40, 5


class Buffers:
    """The texts of a project, asked for what makes buffers in them."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents
        self._paths: dict[str, str] = {}
        self._any: bool | None = None

    def are_missing(self, path: str, names: Mapping[str, str], functions: Iterable[Function], of: Expr, line: int) -> bool:
        """Whether a module that is wrapped in this file has no buffers, as far as its class and all that this imports can be read."""
        if not self._contents:
            return False
        name = _class_of(functions, of, line)
        if name:
            full = names.get(name.partition(".")[0], "")
            at = self._file_of(path, full) if full else path
            return at is not None and self._is_without(at)
        if self._any is None:
            has_modules = any(b"nn.Module" in d for d in self._contents.values())  # else they come from elsewhere
            self._any = not has_modules or any(
                _MAKES.search(d) or _BY_NAME.search(d) or self._is_foreign(p) for p, d in self._contents.items()
            )
        return not self._any

    def _is_without(self, path: str) -> bool:
        todo, seen = [path], {path}
        while todo:
            one = todo.pop()
            data = self._contents[one]
            if _MAKES.search(data) or _BY_NAME.search(data) or len(seen) > _MOST_FILES:
                return False
            for module in _imports(data):
                at = self._file_of(one, module)
                if at is None and module.strip(".").partition(".")[0] not in _PLAIN:
                    return False
                if at is not None and at not in seen:
                    seen.add(at)
                    todo.append(at)
        return True

    def _is_foreign(self, path: str) -> bool:
        return any(
            self._file_of(path, m) is None and m.partition(".")[0] not in _PLAIN for m in _imports(self._contents[path])
        )

    def _file_of(self, path: str, full: str) -> str | None:
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


def _imports(data: bytes) -> Iterable[str]:
    for m in _IMPORTS.finditer(data):
        module = (m[1] or m[3]).decode()
        if m[1] and not m[1].strip(b"."):  # `from . import models`
            yield from (module + n for n in re.findall(r"\w+", m[2].decode("utf-8", "replace").partition("#")[0]))
        else:
            yield module


def _class_of(functions: Iterable[Function], of: Expr, line: int, steps: int = 4) -> str:
    """The name of what was called to make a module; empty: that is not in sight."""
    made = _made(of)
    if made is not None:
        return made
    if not isinstance(of, Ref) or not steps:
        return ""
    bound = [
        n for f in functions for n in nodes_in(f.body) if isinstance(n, Set) and of in n.targets and n.value != of
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
