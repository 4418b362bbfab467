"""What a rank's forward had in its graph, or left out, and which buffers it exchanges there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from unhang.analyze.align import calls_at
from unhang.analyze.bindings import last_name
from unhang.analyze.divergence import Divergence
from unhang.analyze.situation import Situation
from unhang.analyze.source import calls_only_on_rank_zero, frame_at, surroundings
from unhang.analyze.trees import importers_beside, nodes_of, program_files, tree_of
from unhang.model import CollectiveCall, Frame

_MOST_BUFFERS = 64
_FORWARD = ("_pre_forward", "_sync_buffers", "forward")


def has_one_more_buffer(s: Situation, d: Divergence) -> bool:
    """Whether the odd ranks broadcast more buffers in one forward than the others, who went on behind it.

    Both began the forward at the same call. Each buffer is broadcast once: two alike are two forwards.
    """
    if not d.is_decided or not _syncs_buffers(d.odd_call) or _syncs_buffers(d.reference_call):
        return False
    group = s.case.calls.groups.index(d.group)
    mine, theirs = _run(s, group, d.odd[0], d), _run(s, group, d.reference[0], d)
    kinds = [(c.in_sizes, c.dtype) for c in (*mine, d.odd_call)]
    return bool(theirs) and len(mine) == len(theirs) and len(set(map(str, kinds))) == len(kinds)


def _run(s: Situation, group: int, rank: int, d: Divergence) -> list[CollectiveCall]:
    """The broadcasts of buffers right before the call at which the ranks part, from the line of the odd ranks' forward."""
    found: list[CollectiveCall] = []
    for seq in range(d.seq - 1, max(0, d.seq - _MOST_BUFFERS), -1):
        call = calls_at(s.index, group, seq).get(rank)
        if call is None or not _syncs_buffers(call):
            break
        found.append(call)
    return found


def _syncs_buffers(call: CollectiveCall) -> bool:
    return any(
        f.function == "_sync_buffers" and f.file.endswith("nn/parallel/distributed.py") for f in call.frames or ()
    )


def hidden_forward(d: Divergence) -> Frame | None:
    """The forward through a DDP wrapper on rank 0 alone that explains an extra broadcast of buffers, if there is just one.

    Such a forward issues no collective itself in evaluation; it makes the next forward on that rank broadcast the buffers.
    """
    frames = d.odd_call.frames or ()
    in_forward = any(f.file.endswith("nn/parallel/distributed.py") and f.function in _FORWARD for f in frames)
    around_odd = [surroundings(f.file, f.line) for f in d.odd_path]
    theirs = {test for f in d.reference_path for test in surroundings(f.file, f.line).tests}
    if not in_forward or d.odd != (0,) or any(a.depends_on_rank and not set(a.tests) <= theirs for a in around_odd):
        return None  # that it went elsewhere by its rank explains more than a forward that nobody saw
    found = {f for frame in d.odd_path for f in calls_only_on_rank_zero(frame.file, frame.line)}
    return found.pop() if len(found) == 1 else None


_MAKES = ("empty", "zeros", "empty_like", "zeros_like", "new_empty", "new_zeros")


class MadeAnew(NamedTuple):
    """`if test: return made` at `line` of `path`, in `function`, whose other `return` gives what it has computed."""

    path: str
    line: int
    function: str
    test: str
    made: str


@lru_cache(maxsize=64)
def made_anew(path: str) -> MadeAnew | None:
    """The one such place for a tensor without rows, in a file and those that import something of it; None where there are several."""
    found = [one for file in (path, *importers_beside(path)) for one in _in_file(file)]
    return found[0] if len(found) == 1 else None


def _in_file(path: str) -> Iterator[MadeAnew]:
    tree = tree_of(path)
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef) or function.name == "backward":
            continue
        given = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
        if all(map(_is_made, given)):
            continue
        for node in ast.walk(function):
            match node:
                case ast.If(test=test, body=[*_, ast.Return(value=ast.expr() as value)]) if not node.orelse:
                    if _asks_for_none(test) and _is_made(value):
                        yield MadeAnew(path, node.lineno, function.name, ast.unparse(test), ast.unparse(value))


def _is_made(value: ast.expr) -> bool:
    is_made = isinstance(value, ast.Call) and last_name(value.func) in _MAKES
    return is_made and not any(k.arg == "requires_grad" for k in getattr(value, "keywords", ()))


def _asks_for_none(test: ast.expr) -> bool:
    """Whether a test asks for a tensor without rows: `x.shape[0] == 0`, `len(x) == 0`, `not x.numel()`."""
    match test:
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.Compare(ops=[ast.Lt()], comparators=[ast.Constant(value=1)]):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() | ast.Subscript()):
            return True
    return False


class SkippedPart(NamedTuple):
    """The layers `parts` of a module (`self.head`), which take part only if `test`, at line `at`. `value`: what the branch changes with them, if a name."""

    at: Frame
    parts: tuple[str, ...]
    test: str
    value: str


@lru_cache(maxsize=64)
def skipped_part(folder: str, names: tuple[str, ...] = ()) -> SkippedPart | None:
    """The one branch of the program's forwards that runs layers in some steps alone; of layers with one of these names, where names are given.

    A branch by a setting (`self.training`, an attribute), or with an `else` that runs layers as well, is none.
    """
    found = [x for path in program_files(folder) if folder for x in _branches(path, set(names))]
    return found[0] if len(found) == 1 else None


def _branches(path: str, names: set[str]) -> Iterator[SkippedPart]:
    for module in (n for n in nodes_of(path) if isinstance(n, ast.ClassDef)):
        methods = {f.name: f for f in module.body if isinstance(f, ast.FunctionDef)}
        made = (
            set(map(ast.unparse, _layers(methods["__init__"]))) if {"__init__", "forward"} <= methods.keys() else set()
        )
        wanted = {m for m in made if not names or m.removeprefix("self.") in names}
        for node in (n for f in methods.values() if f.name != "__init__" for n in ast.walk(f) if isinstance(n, ast.If)):
            parts = tuple(dict.fromkeys(_called(node.body)))
            if not wanted.isdisjoint(parts) and made.isdisjoint(_called(node.orelse)) and _asks_the_data(node.test):
                yield SkippedPart(
                    frame_at(path, node.lineno),
                    tuple(x for x in parts if x in made),
                    ast.unparse(node.test),
                    _changed(node.body),
                )


def _layers(init: ast.FunctionDef) -> Iterator[ast.expr]:
    """The attributes that are set to something that is made there."""
    for node in ast.walk(init):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from (t for t in node.targets if isinstance(t, ast.Attribute))


def _called(body: Iterable[ast.stmt]) -> Iterator[str]:
    """What is called there, and what is given to a function such as `checkpoint`."""
    for node in (n for statement in body for n in ast.walk(statement) if isinstance(n, ast.Call)):
        yield from map(ast.unparse, (node.func, *node.args))


def _asks_the_data(test: ast.expr) -> bool:
    """Whether a test asks for anything but attributes of the object and constants; `is None` asks for what the caller gave."""
    is_given = isinstance(test, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)
    asked = [n.id for n in ast.walk(test) if isinstance(n, ast.Name)]
    return not is_given and any(name != "self" for name in asked)


def _changed(body: Sequence[ast.stmt]) -> str:
    """The name that the last statement of a branch sets."""
    match body[-1]:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
            return name
    return ""
