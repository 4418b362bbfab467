"""First fixes of a backward pass that not all ranks make: on some of them a result, or a module's run, is no part of the graph."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.program.source import frame_at
from unhang.analyze.program.trees import WITHOUT_GRAPH, inside, last_name, line_text, names_in, program_nodes
from unhang.model import Fix, Frame
from unhang.rules import wording as w
from unhang.rules.base import CLEAN, edit


class LostGraph(NamedTuple):
    """Where something leaves the graph, what leads out of it, as it is written, and what mends that."""

    at: Frame
    text: str
    fix: Fix


def of_lost_graph(folder: str, d: Divergence) -> LostGraph | None:
    """For a call that a library made in the backward pass of some ranks alone."""
    frames = [*(d.odd_call.frames or ()), *(d.reference_call.frames or ())]
    if d.in_library and any("/torch/distributed/nn/" in f.file for f in frames):
        return of_left_graph(folder)
    is_sharded = any("/fsdp/" in f.file and f.function.endswith("_backward") for f in frames)
    return of_run_without_graph(folder) if is_sharded else None


_GRAPH_CALLS = "torch.distributed.nn"  # calls whose backward is a call of all ranks, too


def of_left_graph(folder: str) -> LostGraph | None:
    """Of a result that has left the graph: `return x.sum() * 0` under a test, where what was gathered from all ranks decides otherwise."""
    found = []
    imported, around = _differentiable(folder)
    for path, f in ((p, n) for p, n in program_nodes(folder) if isinstance(n, ast.FunctionDef)):
        gathered = _bound_by(f, around | imported.get(path, set()))
        if not gathered:
            continue
        computed = _follows(f, gathered)
        given = [n for n in inside(f, ast.Return) if n.value is not None]
        for test in (
            n for n in f.body if isinstance(n, ast.If) and not n.orelse and isinstance(n.body[-1], ast.Return)
        ):
            value = test.body[-1].value  # type: ignore[attr-defined]
            others = [n for n in given if n.lineno > test.lineno and names_in(n) & computed]
            if value is not None and others and not names_in(value) & computed:
                found.append((path, test, value, min(gathered)))
    if len(found) != 1:
        return None
    path, test, value, name = found[0]
    first = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
    whole, kept = ast.unparse(value), ast.unparse(first)
    fix = edit(
        f"Let the result depend on `{name}` in that case, too: the backward of the gather is a call of all ranks",
        f"# {w.line_at(path, test.body[-1].lineno)}, in place of `return {whole}`\nreturn {whole.replace(kept, f'{kept} + {name}.sum() * 0.0', 1)}",
        verify=CLEAN,
    )
    return LostGraph(frame_at(path, test.lineno), f"`if {ast.unparse(test.test)}`", fix)


def _differentiable(folder: str) -> tuple[Mapping[str, set[str]], set[str]]:
    """The names by which files call such a gather: file -> those that it imports; and functions of the program that give back what one of these gives."""
    own: dict[str, set[str]] = {}
    for file, n in program_nodes(folder):
        if isinstance(n, ast.ImportFrom) and (n.module or "").startswith(_GRAPH_CALLS):
            own.setdefault(file, set()).update(a.asname or a.name for a in n.names)
    around = {
        f.name
        for file, f in program_nodes(folder)
        if isinstance(f, ast.FunctionDef)
        and any(last_name(c.func) in own.get(file, ()) for r in inside(f, ast.Return) for c in inside(r, ast.Call))
    }
    return own, around


def _bound_by(function: ast.FunctionDef, calls: Collection[str]) -> set[str]:
    """The names that a function binds to what these calls give, each to its own."""
    found = set()
    for n in inside(function, ast.Assign):
        pairs = [(n.targets[0], n.value)]
        if isinstance(n.targets[0], ast.Tuple) and isinstance(n.value, ast.Tuple):
            pairs = list(zip(n.targets[0].elts, n.value.elts, strict=False))
        found |= {
            t.id for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, ast.Call) and last_name(v.func) in calls
        }
    return found


def _follows(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """These names, and those that the function computes from them."""
    found = set(names)
    for n in sorted(inside(function, ast.Assign), key=lambda n: n.lineno):
        if names_in(n.value) & found and not isinstance(n.value, ast.Tuple):
            found |= {t.id for t in n.targets if isinstance(t, ast.Name)}
    return found


def of_run_without_graph(folder: str) -> LostGraph | None:
    """Of a module that a class runs under no_grad in one place, and with a graph in another: its shards are gathered and reduced in a backward pass that it has not."""
    found = []
    for path, owner in ((p, n) for p, n in program_nodes(folder) if isinstance(n, ast.ClassDef)):
        methods = [f for f in owner.body if isinstance(f, ast.FunctionDef)]
        for function in methods:
            for line, block in _without_graph(function):
                runs = {ast.unparse(c.func) for c in inside(block, ast.Call) if ast.unparse(c.func).startswith("self.")}
                others = [f for f in methods if f is not function and f.name == "forward"]
                shared = {ast.unparse(c.func) for f in others for c in inside(f, ast.Call)} & runs
                found += [(path, line, function.name, name) for name in sorted(shared)]
    if len(found) != 1:
        return None
    path, line, method, name = found[0]
    fix = edit(
        f"Run `{name}` with a graph in {method}(), too, and keep it out of the result by a factor of zero",
        f"# {w.line_at(path, line)}: take out the no_grad. The module is sharded: its backward is a call of all ranks, and a run without a graph has none\n"
        f"{name}(...).sum() * 0.0   # added to what the rank goes on with",
        verify=CLEAN,
    )
    return LostGraph(frame_at(path, line), f"no_grad in {method}()", fix)


def _without_graph(function: ast.FunctionDef) -> Iterator[tuple[int, ast.AST]]:
    """(line, what runs so) of a function or of its blocks that keep no graph."""
    decorators = [
        d for d in function.decorator_list if last_name(d.func if isinstance(d, ast.Call) else d) in WITHOUT_GRAPH
    ]
    if decorators:
        yield decorators[0].lineno, function
        return
    for block in inside(function, ast.With):
        calls = [i.context_expr for i in block.items if isinstance(i.context_expr, ast.Call)]
        if any(last_name(c.func) in WITHOUT_GRAPH for c in calls):
            yield block.lineno, block


def zero_loss(frame: Frame, test: str) -> Fix | None:
    """For a step of the training that a rank leaves out where it has nothing for it."""
    if ".backward(" not in line_text(frame.file, frame.line):
        return None
    return edit(
        "Let a rank that has nothing make the round, too, with a loss of zero: if all left it out, the others would lose theirs",
        f"# {w.place(frame)} runs only if `{test}`; in place of that, on every rank and in every round:\n"
        "loss = losses.sum() / max(count, 1)   # of what is there: 0 where there is nothing; the mean of nothing is NaN\n"
        "loss.backward()                       # with zeros there; and the step of the optimizer as on the others",
        verify=CLEAN,
    )
