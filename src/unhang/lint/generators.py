"""Generators of this rank's items: whether each rank's gives as many as those of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from unhang.lint import known, sorts
from unhang.lint.conditions import asks_for_others
from unhang.lint.ir import Call, Const, Expr, Function, If, Leave, Loop, Op, Ref, Set, nodes_in, statements_in
from unhang.lint.samplers import OF_ALL, by_draw, divides, is_counted
from unhang.lint.special import is_share, paths_in
from unhang.lint.values import LOSS, OWN_BATCH, RANK, UNEVEN, Value

if TYPE_CHECKING:
    from unhang.lint.divergence import Cause
    from unhang.lint.flow import Frame
    from unhang.lint.operators import Operators
    from unhang.lint.project import Project

_AT_END = re.compile(r"(\w+) is None|not (\w+)")
_SETTING = re.compile(r"(not )?self\.(\w+)")


def leave_generator(frame: Frame, s: Leave, by_rank: bool) -> None:
    """Notes what a `yield`, or a way out of a generator, says of how many items it gives on each rank."""
    if s.kind in ("yield", "continue"):
        is_of_share = by_rank or (s.kind == "yield" and (frame._uneven_loops > 0 or gives_by_own(frame)))
        if frame._endless:
            frame._is_uneven_round |= is_of_share
        else:
            frame._ends_unevenly |= is_of_share
            frame._ends_unevenly &= not (s.kind == "yield" and frame._fills)  # what comes after the share fills it up
    if s.kind == "return" or (s.kind == "break" and frame.loops == 1):
        frame._ends_by_rank |= any(ends_for_some(c) for c, *_ in frame.conditions)
    if s.kind in ("return", "break") and frame._endless and frame.loops == 1:
        of = ends_alone(frame, [c for c, *_ in frame.conditions])
        frame._ends_unevenly |= of is not None
        frame._ends_as = of if of == sorts.FILTERED else frame._ends_as
    is_of_own = s.kind == "yield" and not frame._endless and (frame._uneven_loops or frame.evens)
    if is_of_own and (frame.filtered or drops_items(frame.function)):
        frame._ends_unevenly, frame._ends_as = not frame._fills, sorts.FILTERED
    if s.kind in ("return", "break") and frame._endless and frame._is_uneven_round:
        frame._until = frame._until or setting_asked(frame.conditions)
    if s.kind == "yield":
        frame._until = frame._until or next(iter(frame.untils), None)
        frame._passes_on += frame._over_parameters[-1:] if not frame._endless else []


def items_given(frame: Frame) -> Value:
    """What a generator is worth: a share of this rank, one that ends by a setting, or that goes through what it is given."""
    passed = ("passes", frame._passes_on[0]) if frame._passes_on else sorts.ENDLESS if frame._never_ends else None
    if not frame._ends_unevenly and not frame._ends_by_rank:
        return Value(sort=frame._until or passed)
    if frame._goes_on:
        return Value(sort=frame._goes_on)
    return Value(UNEVEN, sort=sorts.ENDS_BY_RANK if frame._ends_by_rank else frame._ends_as or ("share", "generator"))


def gives_by_own(frame: Operators) -> bool:
    """Whether a generator gives an item more by what this rank has drawn, or by its own samples."""
    return by_draw(frame) or by_size(frame)


def by_size(frame: Operators) -> bool:
    """Whether an item more comes of how large this rank's own samples are: `if total + size > budget`."""
    inside = [c for c, *_ in frame.conditions if frame.loops_over_own and ("<" in c.text or ">" in c.text)]
    return any(c.value.dep & (LOSS | OWN_BATCH) and not c.value.dep & RANK for c in inside)


def ends_for_some(cause: Cause) -> bool:
    """Whether a condition asks if there is anything left for this rank: `rank >= len(hands)`, but not `rank >= world_size`."""
    is_asked = cause.value.dep & RANK and not cause.value.group and ("<" in cause.text or ">" in cause.text)
    return bool(is_asked) and OF_ALL.search(cause.text) is None


def setting_asked(conditions: Sequence[tuple[Cause, int, int]]) -> tuple[str, str, bool] | None:
    """By which attribute of its object a generator ends that goes round for ever otherwise, and what that is then: `if not self.repeat: return`."""
    asked = _SETTING.fullmatch(conditions[-1][0].text) if len(conditions) == 1 else None
    return ("until", asked[2], not asked[1]) if asked and not conditions[0][0].value.dep else None


def setting_to_go_on(s: Loop) -> tuple[str, str, bool] | None:
    """By which attribute of its object a generator goes round for ever: `while self.repeat: yield from items`."""
    if s.target is not None or not isinstance(s.over, Ref) or not s.over.path.startswith("self."):
        return None
    inside = list(nodes_in(s.body))
    leaves = any(isinstance(n, Leave) and n.kind in ("break", "return") for n in inside)
    gives = any(isinstance(n, Leave) and n.kind == "yield" for n in inside)
    is_set = any(isinstance(n, Set) and s.over in n.targets for n in inside)
    return ("until", s.over.path[5:], False) if gives and not leaves and not is_set else None


def ends_by_setting(project: Project, sort: tuple[Any, ...], returned: Value, worth: Callable[[int], Value]) -> bool:
    """Whether an object of a class whose generator ends by a setting is made with that setting, and so with a share of the data."""
    target = project.method(sort[1], sort[2], "__init__")
    if returned.kind != "until" or target is None or is_counted(project, sort[1], sort[2]):
        return False
    function, (_, name, wanted) = project.function(*target), returned.sort
    given = (v for n in function.bindings for t, v in n.pairs() if t == Ref(f"self.{name}"))
    at = {function.parameters.index(e.path) for e in given if isinstance(e, Ref) and e.path in function.parameters}
    return len(at) == 1 and worth(*at).const is wanted


def drops_items(function: Function) -> bool:
    """Whether a generator goes through items, and leaves out those that are no good by what is in them: not by how many there were."""
    if "drops" not in function.notes:
        loops = (n for n in statements_in(function.body) if isinstance(n, Loop) and n.target is not None)
        function.notes["drops"] = any(_drops(function, n) for n in loops)
    return bool(function.notes["drops"])


def _drops(function: Function, loop: Loop) -> bool:
    leaves = [n for n in statements_in(loop.body) if isinstance(n, Leave)]
    if loop.target is None or any(n.kind in ("break", "return") for n in leaves):
        return False
    for n in loop.body:
        last = n.body[-1] if isinstance(n, If) and n.body else None
        if not isinstance(n, If) or n.orelse or not isinstance(last, Leave) or last.kind not in ("continue", "yield"):
            continue
        is_all = last.kind == "continue" and not any(isinstance(s, Leave) and s.kind == "yield" for s in n.body)
        is_all = is_all or (last.kind == "yield" and n is loop.body[-1] and len(leaves) == 1)
        if is_all and is_of(function, n.test, loop.target):
            return True
    return False


def is_of(function: Function, test: Expr, target: Expr) -> bool:
    """Whether a condition asks for what was made of an item, and of no count."""
    if isinstance(target, Op) and target.op == "seq" and len(target.parts) == 2:
        target = target.parts[1]  # `for i, item in enumerate(items)`
    made, names = {p.partition(".")[0] for p in paths_in(target)}, _heads(test)
    for n in function.bindings:  # the outer ones first, as they stand
        if n.adds and any(isinstance(t, Ref) and t.path in names for t in n.targets):
            return False
    for _ in range(4):
        made |= {t.path for n in function.bindings if _heads(n.value) & made for t in n.targets if isinstance(t, Ref)}
    return bool(names & made)


def _heads(e: Expr) -> set[str]:
    return {p.partition(".")[0] for p in paths_in(e)} - {"self"}


def ends_alone(frame: Operators, conditions: list[Cause]) -> tuple[Any, ...] | None:
    """What sort of share has come to its end, where a generator leaves an endless loop by that alone: `if batch is None: break`; None: it does not.

    That all agree on it in another mode of the object is no help in this one, unless there are no others in this one.
    """
    if not conditions:
        return None
    of = _share_at_end(frame, conditions[-1])
    return of if of is not None and all(_is_mode(frame, c) for c in conditions[:-1]) else None


def _share_at_end(frame: Operators, cause: Cause) -> tuple[Any, ...] | None:
    asked = _AT_END.fullmatch(cause.text)
    name = Ref(asked[1] or asked[2]) if asked else None
    for n in frame.function.bindings if name is not None else ():
        match n.value:
            case Call(func=Ref(path="next"), args=[of, Const(value=None)]) if name in n.targets:
                v = frame.value(of)
                return v.sort if is_share(v) else None
    return None


def _is_mode(frame: Operators, cause: Cause) -> bool:
    """Whether a condition is that an object is not in the one mode in which the ranks agree, by what its class computes besides whether there are others."""
    asked = [of for of, wanted in cause.needed if wanted is True and isinstance(of, str) and of.startswith("self.")]
    own = frame.link.project.all_methods(frame.file, frame.function.owner) if frame.function.owner else []
    bound = [v for f in own for n in f.bindings for t, v in n.pairs() if len(asked) == 1 and t == Ref(asked[0])]
    match bound:
        case [Op(op="and", parts=parts)]:
            more = [p for p in parts if not (asks_for_others(p) or _counts_ranks(p))]
            return bool(more) and len(more) < len(parts)
    return False


def _counts_ranks(e: Expr) -> bool:
    """`gang.size > 1`."""
    match e:
        case Op(op=">", parts=[Ref(path=path), Const(value=1)]):
            return path.rpartition(".")[2] in ("size", "world", "n")
    return False


def fills_elsewhere(project: Project, file: int, cls: str) -> bool:
    """Whether a class counts items by the number of ranks in a method that does not pick those of this rank."""
    methods = project.all_methods(file, cls)
    return any(divides(f) for f in methods if not any(_names_rank(n) for n in nodes_in(f.body)))


def _names_rank(n: object) -> bool:
    return isinstance(n, Ref) and known.rank_kind(n.path.rpartition(".")[2]) == "rank"
