"""Gradients of which each rank has a part of its own: what it finds in them, it alone knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unhang.lint import sorts
from unhang.lint.ir import Call, Expr, Loop, Op, Ref, nodes_in
from unhang.lint.special import name_of
from unhang.lint.values import HELD, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators

_GIVES_ALL = ("parameters", "named_parameters")


def own_gradients(frame: Operators, node: Call) -> Value | None:
    """Whether a call looks into gradients of this rank's own part of the parameters: `torch.isfinite(p.grad)`; None: it does something else."""
    of = node.args[0] if node.args else None
    name, _, last = of.path.partition(".") if isinstance(of, Ref) else ("", "", "")
    if last != "grad":
        return None
    is_own = any(_is_own(frame, over) for over in _gone_through(frame, name))
    return Value(HELD, sort=sorts.TEST) if is_own else None


def _gone_through(frame: Operators, name: str) -> Iterator[Expr]:
    """What loops and comprehensions with a target of this name go through."""
    for n in nodes_in(frame.function.body):
        match n:
            case Loop(target=Op() | Ref() as target, over=over) if Ref(name) in nodes_in(target):
                yield over
            case Op(op="comp", parts=[_, *loops]):
                for loop in loops:
                    if isinstance(loop, Op) and Ref(name) in nodes_in(loop.parts[0]):
                        yield loop.parts[1]


def _is_own(frame: Operators, e: Expr, steps: int = 2) -> bool:
    """`parts[rank]`, or a name for that; the parameters of what FSDP wraps."""
    match e:
        case Op(op="[]", parts=[_, index]):
            return bool(frame.value(index).sort == ("rank",))
        case Call(func=Ref(path=path)) if name_of(e) in _GIVES_ALL:
            return bool(frame.ref(path.rpartition(".")[0]).sort == ("wrap", "fsdp"))
        case Ref() if steps:
            own = [
                f
                for f in frame.source.functions
                if f is frame.function or (f.owner and f.owner == frame.function.owner)
            ]
            bound = [n.value for f in own for n in f.bindings if e in n.targets]
            return bool(bound) and all(_is_own(frame, v, steps - 1) for v in bound)
    return False
