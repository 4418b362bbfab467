"""What ends the generator of the program that a loop goes over, as the source has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from unhang.analyze.bindings import last_name
from unhang.analyze.set_order import unwrapped
from unhang.analyze.source import loop_at
from unhang.analyze.trees import tree_of
from unhang.analyze.ways_out import WayOut, ways_of
from unhang.model import Frame


@lru_cache(maxsize=64)
def end_of_generator(path: str, header: int) -> tuple[Frame, WayOut] | None:
    """The test that ends the generator early over which the loop at a line goes; None where it has several, none, or is not the program's."""
    loop = loop_at(path, header)
    called = unwrapped(loop.iter) if isinstance(loop, ast.For | ast.AsyncFor) else None
    found = _generator(path, last_name(called.func)) if isinstance(called, ast.Call) else None
    if found is None:
        return None
    file, function = found
    loops = [n for n in function.body if isinstance(n, ast.For | ast.AsyncFor | ast.While)]
    others = [n for n in function.body if n not in loops]
    ways = [*ways_of(others, in_loop=False), *(w for n in loops for w in ways_of(n.body, in_loop=True))]
    return (Frame(file, ways[0].line, function.name), ways[0]) if len(ways) == 1 else None


def _generator(path: str, name: str) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef] | None:
    """The one generator of this name in the file, or in the file beside it from which it is imported."""
    for file in (path, *_imported_from(path, name)):
        tree = tree_of(file)
        named = [
            n
            for n in (ast.walk(tree) if tree is not None and name else ())
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name
        ]
        if len(named) == 1 and any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(named[0])):
            return file, named[0]
    return None


def _imported_from(path: str, name: str) -> Iterator[str]:
    tree = tree_of(path)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ImportFrom) and node.module and any((a.asname or a.name) == name for a in node.names):
            yield str(Path(path).parent.joinpath(*node.module.split("."))) + ".py"
