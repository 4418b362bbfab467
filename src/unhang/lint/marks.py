"""What a function sets on the objects that it is given (`state.stop = True`), by which of their parts it decides, and which words it gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from unhang.lint import sorts
from unhang.lint.ir import Const, Expr, Function, If, Leave, Op, Ref, calls_in, nodes_in, statements_in
from unhang.lint.special import name_of, paths_in
from unhang.lint.values import DATA, DIFFERS, OF_DATA, PLAIN, UNEVEN, UNKNOWN, Given, Summary, Value, mixed

if TYPE_CHECKING:
    from unhang.lint.operators import Operators


def note_marks(frame: Operators, summary: Summary) -> None:
    """What a function sets on the objects that it is given, where that differs by what else it is given, or is agreed on."""
    function = frame.function
    given = {p: at for at, p in enumerate(function.parameters) if at or not function.is_method}
    for path, v in frame.env.items() if frame.marked else ():
        head, _, name = path.partition(".")
        if head in given and name in frame.marked and v.const is not UNKNOWN and not v.params and not v.dep:
            summary.resets |= {(given[head], name)}
        elif head in given and name in frame.marked and (v.dep & DIFFERS or v.params or v.sort == sorts.AGREED):
            summary.marks[given[head], name] = v
            told = frame.parts.get(path, frozenset())
            asked = _decided_by(function, path) if v.params and not v.dep else set[str]()
            split = (p.split(".") for p in asked if "." in p)
            parts = told.union((given[one], attribute) for one, attribute, *_ in split if one in given)
            if parts:
                summary.parts[given[head], name] = parts


def _decided_by(function: Function, path: str) -> set[str]:
    """The names in what decides whether, and to what, a path is set; and in what these are computed from."""
    target = Ref(path)
    asked: list[Expr] = [n.value for n in function.bindings if target in n.targets]
    ifs = (n for n in statements_in(function.body) if isinstance(n, If))
    asked += [
        n.test for n in ifs if any(target in getattr(s, "targets", ()) for s in statements_in([n.body, n.orelse]))
    ]
    seen, todo = set[str](), _names(asked)
    while todo:
        seen |= todo
        todo = _names(n.value for n in function.bindings if any(Ref(p) in n.targets for p in todo)) - seen
    return seen


def _names(parts: Iterable[Expr]) -> set[str]:
    return set[str]().union(*map(paths_in, parts))


def mark(frame: Operators, summary: Summary, given: Given) -> None:
    """After a call, an object that was given to it has what was set there."""
    for at, name in summary.resets:
        expr = given[at][0] if at in given else None
        if isinstance(expr, Ref) and frame.env.get(path := f"{expr.path}.{name}", PLAIN).dep and not frame.conditions:
            frame.env[path] = PLAIN
    for (at, name), v in summary.marks.items():
        of = given[at][0] if at in given else None
        if not isinstance(of, Ref):
            continue
        by = mixed(
            *(given[i][1] for i in v.params if i in given), _of_parts(frame, summary, (at, name), of.path, given)
        )
        if v.sort == sorts.AGREED or (v.dep | by.dep) & DIFFERS or by.params:
            sort = v.sort if v.sort in (sorts.AGREED, sorts.TEST) else None
            frame.assign(Ref(f"{of.path}.{name}"), Value((v.dep | by.dep) & DIFFERS, by.params, sort, v.zero), True)


def _of_parts(frame: Operators, summary: Summary, key: tuple[int, str], path: str, given: Given) -> Value:
    """What those parts of the given objects are worth by which a function has decided; what is not known here is for our own callers."""
    worth, later = [PLAIN], set[tuple[int, str]]()
    for i, name in summary.parts.get(key, ()):
        e, v = given.get(i, (None, PLAIN))
        if not isinstance(e, Ref):
            continue
        part = f"{e.path}.{name}"
        if part in frame.env or v.kind == "obj":
            worth.append(frame.ref(part))
        elif (own := frame.parameter(e.path)) >= 0:
            later.add((own, name))
    if later:
        frame.parts[f"{path}.{key[1]}"] = frozenset(later)
    return Value(mixed(*worth).dep & OF_DATA)


def with_words(frame: Operators, returned: Value) -> Value:
    """What a function gives, where it gives dictionaries with other words as what it is given has it: `if not doc["boxes"]: return {"absent": 1.0}`."""
    ends = [n for n in statements_in(frame.function.body) if isinstance(n, Leave) and n.kind == "return"]
    words = {id(n): _words_of(frame.function, n.value) for n in ends}
    if None in words.values() or len({frozenset(w) for w in words.values() if w is not None}) < 2:
        return returned
    ifs = (n for n in statements_in(frame.function.body) if isinstance(n, If))
    tests = [n.test for n in ifs if any(id(s) in words for s in (*n.body[-1:], *n.orelse[-1:]))]
    asked = [p for test in tests if not _asks_what_it_is(test) for p in paths_in(test)]
    by = mixed(*(frame.ref(p) for p in asked if frame.ref(p).sort != sorts.AGREED))
    if by.dep & ~DATA or not (by.dep or by.params):
        return returned
    is_there = UNKNOWN if set() in words.values() else ("words",)  # there is always something in it
    return Value(UNEVEN * bool(by.dep), by.params, sorts.OWN_KEYS, const=is_there)


def _words_of(function: Function, e: Expr | None) -> set[Any] | None:
    """The words of a dictionary that is written out, or begins so; None: it is something else."""
    if isinstance(e, Ref):
        bound = [v for n in function.bindings for t, v in n.pairs() if t == e]
        return _words_of(function, bound[0]) if len(bound) == 1 and not isinstance(bound[0], Ref) else None
    if not isinstance(e, Op) or e.op != "dict" or len(e.parts) % 2:
        return None
    words = [p.value for p in e.parts[: len(e.parts) // 2] if isinstance(p, Const)]
    return set(words) if len(words) == len(e.parts) // 2 else None


def _asks_what_it_is(test: Expr) -> bool:
    """Whether a condition asks for the sort of what is given, or for its words: these are the same for all items, perhaps."""
    asks = (isinstance(n, Op) and n.op in ("in", "not in", "is", "is not") for n in nodes_in(test))
    return any(asks) or any(name_of(n) in ("isinstance", "hasattr", "callable") for n in calls_in(test))
