"""Source files as trees, and the files of the program beside one."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_MOST_BYTES = 2_000_000


@lru_cache(maxsize=64)
def read_source(path: str) -> tuple[ast.Module, tuple[str, ...]] | None:
    """The file as a tree and as its lines, or None where it cannot be read."""
    lines = linecache.getlines(path)
    if not lines or sum(map(len, lines)) > _MOST_BYTES:
        return None
    try:
        return ast.parse("".join(lines)), tuple(lines)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def tree_of(path: str) -> ast.Module | None:
    """The file as a tree, or None where it cannot be read."""
    found = read_source(path)
    return found[0] if found else None


def nodes_of(path: str) -> Iterator[ast.AST]:
    """All nodes of the file; none where it cannot be read."""
    tree = tree_of(path)
    return ast.walk(tree) if tree is not None else iter(())


def imported_by(path: str) -> set[str]:
    """The modules that the file imports, or from which it does, as it names them."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def line_text(path: str, line: int) -> str:
    """The source line, stripped, or an empty string where it cannot be read."""
    found = read_source(path)
    return found[1][line - 1].strip() if found and 0 < line <= len(found[1]) else ""


def covers(node: ast.AST, line: int) -> bool:
    """Whether a line is one of a node's."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


@lru_cache(maxsize=64)
def imports_beside(path: str) -> dict[str, str]:
    """What a file imports from files beside it, or below: the name -> that file; a module by its own name."""
    tree, folder = tree_of(path), Path(path).parent
    found: dict[str, str] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ImportFrom):
            for a in node.names:
                parts = (node.module or "").split(".") if node.module else []
                for where in (folder.joinpath(*parts, a.name), folder.joinpath(*parts)):
                    if where.with_suffix(".py").is_file():
                        found.setdefault(a.asname or a.name, str(where.with_suffix(".py")))
                        break
        elif isinstance(node, ast.Import):
            for a in node.names:
                where = folder.joinpath(*a.name.split(".")).with_suffix(".py")
                if where.is_file():
                    found[a.asname or a.name.partition(".")[0]] = str(where)
    return found


_MOST_BESIDE, _MOST_FILES = 40, 100
_NOT_THERE = frozenset(("site-packages", "node_modules", "__pycache__"))


def program_files(folder: str) -> list[str]:
    """The files of a program: those of a folder, and of the folders in it."""
    here = Path(folder)
    found = sorted(p for pattern in ("*.py", "*/*.py") for p in here.glob(pattern) if _NOT_THERE.isdisjoint(p.parts))
    return [str(p) for p in found[:_MOST_FILES]]


def files_beside(path: str) -> list[str]:
    """A file of a program, and the others of the program."""
    return [path, *(p for p in program_files(str(Path(path).parent)) if p != path)]


@lru_cache(maxsize=64)
def importers_beside(path: str) -> tuple[str, ...]:
    """The files beside one, or in the folder above, that import something from it."""
    folder = Path(path).parent
    files = sorted({*folder.glob("*.py"), *folder.parent.glob("*.py")})
    return tuple(str(f) for f in files[:_MOST_BESIDE] if path in imports_beside(str(f)).values())
