"""What decorators do: they let one rank alone through, or make calls of their own around what they decorate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.lint import known
from unhang.lint.ir import Call, Const, Expr, Function, If, Leave, Op, Ref, nodes_in
from unhang.lint.project import Project, Symbol
from unhang.lint.values import AGREED, MOST_WAY, Place, Value

if TYPE_CHECKING:
    from unhang.lint.flow import Frame


def is_gate(project: Project, file: int, decorator: str) -> bool:
    """Whether a decorator of the project calls what it decorates on one rank only: `if rank == 0: return fn(...)`."""
    symbol = project.symbol_of(file, decorator)
    if symbol is None or symbol.kind != "fn":
        return False
    key = (symbol.file, symbol.at)
    if key not in project.gates:
        project.gates[key] = _lets_one_through(project, symbol)
    return project.gates[key]


def _lets_one_through(project: Project, symbol: Symbol) -> bool:
    found = _inner(project, symbol)
    if found is None:
        return False
    decorated, body = Ref(project.function(symbol.file, symbol.at).parameters[0]), found[1].body
    calls = [n for n in nodes_in(body) if isinstance(n, Call) and n.func == decorated]
    by_rank = [n for n in nodes_in(body) if isinstance(n, If) and is_of_rank(n.test) and not n.orelse]
    inside = [n for b in by_rank for n in nodes_in(b.body) if isinstance(n, Call) and n.func == decorated]
    if len(calls) != 1:
        return False
    left = [s.body[-1] for s in body if isinstance(s, If) and _is_of_others(s.test)]
    leaves = any(isinstance(s, Leave) and s.kind == "return" and s.line < calls[0].line for s in left)
    return len(inside) == 1 or (not inside and leaves)


def _is_of_others(test: Expr) -> bool:
    """`rank != 0`, `not is_main_process()`."""
    match test:
        case Op(op="not", parts=[inner]):
            return is_of_rank(inner)
        case Op(op="!=", parts=[of, Const(value=0)]):
            return is_of_rank(Op("==", [of, Const(0)]))
    return False


def take_over_decorators(frame: Frame) -> Value | None:
    """What the functions that a project's decorators put around this one do besides calling it; what they give back instead, if all ranks get it."""
    link, agreed = frame.link, None
    for name in frame.function.decorators:
        symbol = link.project.symbol_of(frame.file, name)
        inner = _inner(link.project, symbol) if symbol is not None and symbol.kind == "fn" else None
        if symbol is None or inner is None or known.MEETS.isdisjoint(inner[1].words):
            continue
        summary = link.summary(symbol.file, inner[0])
        place = Place(frame.path, frame.function.line, 1, f"@{name}")
        for effect in summary.effects:
            if effect.param < 0 and not effect.needs:
                group = "" if effect.group.startswith("@") else effect.group
                frame.emit(effect._replace(way=(place, *effect.way)[:MOST_WAY], group=group))
                agreed = summary.returns if summary.returns.sort == AGREED else agreed
    return agreed


def _inner(project: Project, symbol: Symbol) -> tuple[int, Function] | None:
    """The one function that is written in a decorator."""
    functions = enumerate(project.files[symbol.file].functions)
    inner = [(at, f) for at, f in functions if f.inside == symbol.at and f.name != "<lambda>"]
    return inner[0] if len(inner) == 1 and project.function(symbol.file, symbol.at).parameters else None


def is_of_rank(test: Expr) -> bool:
    """Whether a condition is for one rank, by its names, or for a job of one."""
    match test:
        case Op(op="or", parts=parts):
            others = [p for p in parts if not is_of_rank(p)]
            return len(others) < len(parts) and all(map(_is_not_distributed, others))
        case Op(op="==", parts=[Ref() | Call() as of, Const(value=0)]) | (Ref() | Call() as of):
            path = of.func if isinstance(of, Call) else of
            kind = known.rank_kind(path.path.rpartition(".")[2]) if isinstance(path, Ref) else None
            return kind is not None and (isinstance(test, Op) or kind == "zero")
    return False


def _is_not_distributed(test: Expr) -> bool:
    match test:
        case Op(op="not", parts=[Ref(path=path)]) | Op(op="not", parts=[Call(func=Ref(path=path))]):
            return path.rpartition(".")[2] in known.SINGLE
    return False


def is_one_rank(decorators: Sequence[str]) -> bool:
    """Whether a function runs on one rank only."""
    return any(d.rpartition(".")[2] in known.ONE_RANK_DECORATORS for d in decorators)
