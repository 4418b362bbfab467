"""What lets one rank alone through: decorators, and conditions by their names."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.lint import known
from unhang.lint.ir import Call, Const, Expr, If, Op, Ref, nodes_in
from unhang.lint.project import Project, Symbol


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
    outer = project.function(symbol.file, symbol.at)
    inner = [f for f in project.files[symbol.file].functions if f.inside == symbol.at and f.name != "<lambda>"]
    if len(inner) != 1 or not outer.parameters:
        return False
    calls = [n for n in nodes_in(inner[0].body) if isinstance(n, Call) and n.func == Ref(outer.parameters[0])]
    by_rank = [n for n in nodes_in(inner[0].body) if isinstance(n, If) and is_of_rank(n.test) and not n.orelse]
    inside = [
        n for b in by_rank for n in nodes_in(b.body) if isinstance(n, Call) and n.func == Ref(outer.parameters[0])
    ]
    return len(calls) == len(inside) == 1


def is_of_rank(test: Expr) -> bool:
    """Whether a condition is for one rank, by its names."""
    match test:
        case Op(op="==", parts=[Ref() | Call() as of, Const(value=0)]) | (Ref() | Call() as of):
            path = of.func if isinstance(of, Call) else of
            kind = known.rank_kind(path.path.rpartition(".")[2]) if isinstance(path, Ref) else None
            return kind is not None and (isinstance(test, Op) or kind == "zero")
    return False


def is_one_rank(decorators: Sequence[str]) -> bool:
    """Whether a function runs on one rank only."""
    return any(d.rpartition(".")[2] in known.ONE_RANK_DECORATORS for d in decorators)
