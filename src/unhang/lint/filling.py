"""What a collection that was empty at first holds in the end: what the batches of this rank had in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unhang.lint.ir import Attr, Call, Const, Expr, Op, Ref, Set, nodes_in
from unhang.lint.special import PICKED, SAMPLE, element, is_held, is_numbered, name_of, paths_in
from unhang.lint.values import DATA, FILLED, LOSS, NO_PARAMS, OWN_BATCH, OWN_KEYS, RANK, UNEVEN, Value

if TYPE_CHECKING:
    from unhang.lint.branches import Branches
    from unhang.lint.expressions import Expressions
    from unhang.lint.flow import Frame
    from unhang.lint.passing import Passing

_PUTS_IN = {"append", "extend", "add", "update"}


def is_new_dictionary(e: Expr) -> bool:
    """Whether a dictionary begins here: `{}`, `{"loss": x}`, `dict()`, `defaultdict(list)`."""
    match e:
        case Op(op="dict"):
            return True
        case Call(args=args):
            name = name_of(e)
            return name == "defaultdict" or (name in ("dict", "OrderedDict", "Counter") and not args)
    return False


def place_of(e: Expr) -> Op | None:
    """`kept[key]` in `kept[key].append(x)`; None: something else is done."""
    match e:
        case Call(func=Attr(base=Op(op="[]") as place, name=name)) if name in _PUTS_IN:
            return place
    return None


def is_by_batch(frame: Frame) -> bool:
    """Whether this line of a loop is left out in rounds in which the rank's own batch is no good."""
    inside = [c for c, _, depth in frame.conditions if depth >= frame.loops]
    left = [e.cause for e in frame.ways_out if e.kind == "continue" and e.loops == frame.loops]
    return any(c.value.dep & (LOSS | OWN_BATCH) and not c.value.dep & RANK for c in (*inside, *left))


def fill(frame: Frame, place: Op) -> None:
    """Something is put into `kept[key]`: where the key is a word of the batch, each rank has keys of its own."""
    base, key = place.parts
    if not isinstance(base, Ref):
        return
    v = frame.value(key) if isinstance(key, Ref | Op) else Value()
    head, _, name = base.path.partition(".")
    is_told = v.dep & DATA or v.params or (isinstance(key, Const) and is_by_batch(frame))
    if v.dep & RANK or not is_told or v.sort not in (None, SAMPLE, ("param", *v.params)):
        return
    if not is_dictionary(frame, base.path):
        return
    if not v.dep & DATA and v.params:
        if head == "self" and name and not frame.is_special:
            frame.keeps[name] = Value(0, v.params, OWN_KEYS)
        return
    frame.env[base.path] = Value(UNEVEN, sort=OWN_KEYS)
    if name:
        note_keys(frame, head, name)


def note_keys(frame: Passing, owner: str, name: str) -> None:
    """An attribute of an object of the project has other keys on each rank."""
    me = frame.ref(owner).sort
    if me is not None and me[0] == "obj":
        frame.link.keyed.add((me[1], me[2], name))


def is_dictionary(frame: Branches | Frame, path: str) -> bool:
    """Whether a name of this function, or an attribute of its object, begins as an empty dictionary."""
    of_object = path.startswith("self.")
    key = (frame.file, -1, frame.function.owner) if of_object else (frame.file, frame.at, "")
    known = frame.link.dictionaries.get(key)
    if known is None:
        functions = [frame.function]
        if of_object:
            functions = [f for f in frame.link.project.files[frame.file].functions if f.owner == frame.function.owner]
        bound = (pair for f in functions for n in nodes_in(f.body) if isinstance(n, Set) for pair in pairs_of(n))
        known = {t.path for t, v in bound if isinstance(t, Ref) and is_new_dictionary(v)}
        frame.link.dictionaries[key] = known
    return path in known


def pairs_of(s: Set) -> Iterator[tuple[Expr, Expr]]:
    """What an assignment binds to what: `a, b = {}, {}` binds both."""
    for target in s.targets:
        yield target, s.value
        if isinstance(target, Op) and isinstance(s.value, Op) and len(target.parts) == len(s.value.parts):
            yield from zip(target.parts, s.value.parts, strict=True)


def comprehension(frame: Expressions, parts: list[Expr]) -> Value:
    """What is gathered by `[made for each of over if it is good]`."""
    before, dep, sort = dict(frame.env), 0, None
    for loop in parts[1:]:
        assert isinstance(loop, Op)
        over = frame.value(loop.parts[1])
        dep |= over.dep & UNEVEN
        frame.assign(loop.parts[0], element(over), is_certain=True)
        if over.sort is not None and (over.sort[0] == "sized" or over.sort == PICKED):
            sort = over.sort
        if over.sort == ("set",) and not is_numbered(" ".join(paths_in(loop.parts[1]))):
            sort = over.sort  # it comes in the order of the set
        if over.sort == ("share", "range") and over.dep & DATA:  # as many as its batch says
            dep, sort = dep | UNEVEN, over.sort
        for condition in loop.parts[2:]:
            asked = frame.value(condition).dep
            if asked & RANK:  # those of this rank
                dep, sort = dep | UNEVEN, sort or ("share", "picked")
            sort = FILLED if asked & DATA and sort is None else sort
            if is_held(condition, loop.parts[0]):
                sort = PICKED
    made = frame.value(parts[0])
    frame.env.clear()
    frame.env.update(before)
    if sort is not None and (sort[0] in ("picked", "share", "filled", "set") or not made.sort):
        return Value(made.dep | dep, made.params | (sort[1] if sort[0] == "sized" else NO_PARAMS), sort)
    return Value(made.dep | dep, made.params, ("many", made.sort) if made.sort else None)
