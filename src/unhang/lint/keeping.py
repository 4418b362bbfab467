"""What objects and containers keep: of what methods are given (a counter of bad epochs, a flag that says stop), and of what the batches of this rank had in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from unhang.lint import sorts
from unhang.lint.ir import (
    Attr,
    Call,
    Const,
    Expr,
    Function,
    Node,
    Op,
    Ref,
    Set,
    calls_in,
    nodes_in,
)  # fmt: skip
from unhang.lint.special import name_of
from unhang.lint.values import (
    DATA,
    DRAWN,
    LOCAL,
    LOSS,
    MAYBE,
    NO_PARAMS,
    OWN_BATCH,
    OWN_STATE,
    RANK,
    UNEVEN,
    UNKNOWN,
    Given,
    Kept,
    Value,
    either,
    is_of_data,
    mixed,
)

if TYPE_CHECKING:
    from unhang.lint.divergence import Cause
    from unhang.lint.link import Link
    from unhang.lint.operators import Operators
    from unhang.lint.project import Project

_BARS = {"tqdm", "trange", "ProgressBar"}
_WAITS = {"join", "result", "wait", "as_completed", "shutdown", "synchronize"}
_TAKES_OUT = {"pop", "popitem", "popleft", "remove", "discard", "clear"}
_PUTS_IN = {"append", "extend", "add", "update"}


def keep(frame: Operators, name: str, value: Value) -> Value:
    """What an attribute is worth that a method sets, also under conditions on what it was given; noted for those who call the method."""
    params = value.params.union(frame.left_by, *(c.value.params for c, *_ in frame.conditions)) - {0}
    if not params or value.kind in ("param", "fn", "bound", "obj", "class"):
        return value
    is_flag = isinstance(value.const, bool) or value.sort == sorts.TEST
    kept = Value(value.dep, params, sorts.TEST if is_flag else None)
    old = frame.keeps.get(name)
    frame.keeps[name] = kept if old is None else either(old, kept)._replace(sort=sorts.TEST if is_flag else old.sort)
    return value._replace(params=value.params | params, const=UNKNOWN, sort=sorts.TEST if is_flag else value.sort)


def stay_after(frame: Operators, cause: Cause) -> None:
    """A function returns under a condition: what it sets after that, it sets where the opposite holds."""
    v = cause.value
    if v.dep & RANK or (v.sort == sorts.TEST and is_of_data(v)):
        frame.stayed.append(cause._replace(value=v._replace(zero=None if v.zero is None else not v.zero)))
    elif v.sort == sorts.TEST:
        frame.left_by |= v.params


def by_conditions(frame: Operators, value: Value) -> Value:
    """A flag that is set under conditions on what the function was given."""
    params = NO_PARAMS.union(*(c.value.params for c, *_ in frame.conditions))
    if not params or not isinstance(value.const, bool):
        return value
    return value._replace(params=value.params | params, const=UNKNOWN, sort=sorts.TEST)


def by_some(frame: Operators, sort: tuple[Any, ...], owner: str, alone: Value | None = None) -> None:
    """After a call of a method that some ranks alone make, its object has there what the method sets."""
    function = frame.link.project.function(sort[1], sort[2])
    causes = [c.value for c, *_ in frame.conditions] + ([alone] if alone is not None else [])
    by = next((c for c in causes if c.dep & RANK and c.zero is not None and not c.group), None)
    me = frame.ref(owner).sort if owner else None
    if me is None or me[0] != "obj" or function.name == "__init__":
        return
    for name in function.sets:
        path = f"{owner}.{name}"
        if by is None:
            if path in frame.env and frame.env[path].dep == RANK:
                del frame.env[path]
            continue
        set_there = frame.link.attribute(me, name) or Value()
        if set_there.sort in (None, sorts.TEST):
            is_flag = isinstance(set_there.const, bool) or set_there.sort == sorts.TEST
            frame.env[path] = Value(RANK, NO_PARAMS, sorts.TEST if is_flag else None)
            frame.link.of_first.add((frame.file, path))


def note_first(frame: Operators, path: str) -> None:
    """Remembers what is bound where the first rank alone comes, or where it does not."""
    causes = [c.value for c, *_ in frame.conditions] + [c.value for c in frame.stayed if "." in path]
    if not any(v.dep & RANK and v.zero is not None and not v.group for v in causes):
        frame.of_first.discard(path)
    elif "." not in path:
        frame.of_first.add(path)
    else:
        frame.link.of_first.add((frame.file, path))


def note_bar(frame: Operators, bar: Expr, made: Expr) -> None:
    """A progress bar that most ranks disable counts on the others only: `tqdm(..., disable=rank != 0)`, and then `bar.n`."""
    off = made.given("disable") if isinstance(made, Call) and name_of(made) in _BARS else None
    if off is not None and isinstance(bar, Ref):
        by = frame.value(off)
        if by.dep & RANK:
            frame.env[f"{bar.path}.n"] = Value(RANK, zero=by.zero)


def note_plateau(frame: Operators, owner: str, args: list[Value]) -> None:
    """A scheduler is told the loss of an evaluation: what it makes of the learning rate, and whether that is small by now, depends on it."""
    if not args or not owner:
        return
    own = [f for f in frame.source.functions if f is frame.function or (f.owner and f.owner == frame.function.owner)]
    made = (n.value for f in own for n in f.bindings if Ref(owner) in n.targets)
    call = next((v for v in made if name_of(v) == "ReduceLROnPlateau"), None)
    if isinstance(call, Call) and call.args and isinstance(call.args[0], Ref):
        optimizer, v = call.args[0].path, Value(args[0].dep & (LOSS | MAYBE), args[0].params)
        for path in (optimizer, f"self.{optimizer}") if owner.startswith("self.") else (optimizer,):
            frame.env[f"{path}.param_groups"] = v
        frame.env[owner] = v


def take_over(frame: Operators, owner: str, keeps: dict[str, Value], given: Given) -> None:
    """After a call of a method, its object keeps what differs between ranks, if it was given that."""
    for name, kept in keeps.items():
        if kept.sort == sorts.OWN_KEYS:
            by = mixed(*(given[i][1] for i in kept.params if i in given))
            if by.dep & OWN_BATCH or any(given[i][1].sort == sorts.OWN_KEYS for i in kept.params if i in given):
                frame.env[f"{owner}.{name}"] = Value(UNEVEN, sort=sorts.OWN_KEYS)
                note_keys(frame, owner, name)
            elif owner == "self" and by.params:
                frame.keeps[name] = Value(0, by.params, sorts.OWN_KEYS)
            continue
        values = [given[i][1] for i in kept.params if i in given]
        by = mixed(*(v if v.sort != sorts.LENGTH else Value(0, v.params) for v in values))
        if owner == "self" and by.params:
            frame.keeps[name] = either(frame.keeps.get(name, Value()), Value(by.dep, by.params - {0}, kept.sort))
        me = frame.ref(owner).sort if by.dep & DRAWN else None
        if me is not None and me[0] == "obj":
            frame.link.set_attribute(me[1], me[2], name, Value(DRAWN, sort=kept.sort))
        if by.dep & (LOSS | MAYBE) or by.params:
            frame.env[f"{owner}.{name}"] = Value(
                by.dep & (LOSS | MAYBE), by.params if owner == "self" else NO_PARAMS, kept.sort
            )


def has_all_gradients(frame: Operators, e: Expr) -> bool:
    """Whether it is the parameters of a module whose gradients a wrapper reduces: a parameter has one on all ranks, or on none."""
    if not isinstance(e, Call) or not isinstance(e.func, Ref) or name_of(e) not in ("parameters", "named_parameters"):
        return False
    owner, project = e.func.path.rpartition(".")[0], frame.link.project
    v = frame.ref(owner)
    bases = project.base_names(v.sort[1], v.sort[2]) if v.kind == "obj" else set()
    is_of_trainer = any(b.endswith("LightningModule") for b in bases) and not frame.link.names_shards
    return v.sort in (("wrap", "ddp"), ("wrap", "ddp without buffers")) or is_of_trainer


def empty_lists(s: Set) -> set[str]:
    """Names that an assignment binds to empty lists or dictionaries."""
    return {
        t.path
        for t, v in s.pairs()
        if isinstance(t, Ref) and isinstance(v, Op) and not v.parts and v.op in ("seq", "dict")
    }


def is_new_dictionary(e: Expr) -> bool:
    """Whether a dictionary begins here: `{}`, `{"loss": x}`, `dict()`, `defaultdict(list)`."""
    match e:
        case Op(op="dict"):
            return True
        case Call(args=args):
            name = name_of(e)
            return name == "defaultdict" or (name in ("dict", "OrderedDict", "Counter") and not args)
    return False


def is_plain_dictionary(e: Expr | None) -> bool:
    """`{"stop": True}`, `{}`: which of several such is given back, conditions say."""
    return isinstance(e, Op) and e.op == "dict" and all(isinstance(part, Const) for part in e.parts)


def place_of(e: Expr) -> Op | None:
    """`kept[key]` in `kept[key].append(x)`; None: something else is done."""
    match e:
        case Call(func=Attr(base=Op(op="[]") as place, name=name)) if name in _PUTS_IN:
            return place
        case Call(func=Attr(base=Call(func=Ref(path=path), args=[key, *_]), name=name)) if name in _PUTS_IN:
            owner, _, last = path.rpartition(".")
            return Op("[]", [Ref(owner), key]) if last == "setdefault" and owner else None
    return None


def is_by_batch(frame: Operators) -> bool:
    """Whether this line of a loop is left out in rounds in which the rank's own batch is no good."""
    inside = [c for c, _, depth in frame.conditions if depth >= frame.loops]
    left = [e.cause for e in frame.ways_out if e.kind == "continue" and e.loops == frame.loops]
    return any(c.value.dep & (LOSS | OWN_BATCH) and not c.value.dep & RANK for c in (*inside, *left))


def is_by_own_state(frame: Operators) -> bool:
    """Whether a rank comes to this line where its own clock, memory or disk allows it."""
    causes = [c.value for c, *_ in frame.conditions]
    causes += [e.cause.value for e in frame.ways_out if e.kind in ("continue", "return")]
    return any(v.dep & OWN_STATE and not v.dep & RANK for v in causes)


def fill(frame: Operators, place: Op) -> None:
    """Something is put into `kept[key]`: where the key is a word of the batch, each rank has keys of its own."""
    base, key = place.parts
    if not isinstance(base, Ref):
        return
    v = frame.value(key) if isinstance(key, Ref | Op) else Value()
    head, _, name = base.path.partition(".")
    by = frozenset[int]()
    if isinstance(key, Const) and "." not in base.path and not has_word(frame, base.path, key):
        by = NO_PARAMS.union(*(c.value.params for c, *_ in frame.conditions if c.value.sort == sorts.TEST))
    if by and not is_by_batch(frame) and is_dictionary(frame, base.path):
        old = frame.env.get(base.path, Value())
        frame.env[base.path] = Value(old.dep, old.params | by, sorts.OWN_KEYS)
        return
    is_word = isinstance(key, Const) or (isinstance(key, Op) and key.op == "str" and not v.dep and not v.params)
    is_told = v.dep & DATA or v.params or (is_word and is_by_batch(frame))
    if v.dep & RANK or not is_told or v.sort not in (None, sorts.SAMPLE, ("param", *v.params)):
        return
    if not is_dictionary(frame, base.path):
        return
    if not v.dep & DATA and v.params:
        if head == "self" and name and not frame.is_special:
            frame.keeps[name] = Value(0, v.params, sorts.OWN_KEYS)
        return
    frame.env[base.path] = Value(UNEVEN, sort=sorts.OWN_KEYS)
    if name:
        note_keys(frame, head, name)


def has_word(frame: Operators, path: str, word: Const) -> bool:
    """Whether a dictionary of this function begins with a word."""
    bound = (v for n in frame.function.bindings for t, v in n.pairs() if t == Ref(path))
    return any(isinstance(v, Op) and v.op == "dict" and word in v.parts for v in bound)


def container_of(e: Node) -> str:
    """The attribute of the object into which an expression or a target puts something: `self.kept.append(x)`, `self.kept[key]`."""
    match e:
        case Call(func=Ref(path=path)) if path.startswith("self.") and path.count(".") == 2:
            _, name, method = path.split(".")
            return name if method in _PUTS_IN or method == "setdefault" else ""
        case Call(func=Attr(base=base, name=name)) if name in _PUTS_IN:
            return container_of(base)
        case Op(op="[]", parts=[Ref(path=path), _]):
            return path[5:] if path.startswith("self.") and path.count(".") == 1 else ""
        case Op(op="[]", parts=[base, _]):
            return container_of(base)
    return ""


def containers(function: Function) -> set[str]:
    """Attributes of the object into which a method puts something."""
    if "puts" not in function.notes:
        nodes = list(nodes_in(function.body))
        made = [n for n in nodes if isinstance(n, Call)]
        bound = [t for n in nodes if isinstance(n, Set) for t in n.targets if isinstance(t, Op) and t.op == "[]"]
        function.notes["puts"] = {container_of(e) for e in (*made, *bound)} - {""}
    return function.notes["puts"]  # type: ignore[no-any-return]


def note_put(frame: Operators, e: Expr) -> None:
    """Something is put into a container that the object keeps, or taken out of it."""
    name, me = container_of(e), frame.env.get("self")
    if me is None or me.kind != "obj" or frame.is_special:
        return
    match e:
        case Call(func=Ref(path=path)) if path.startswith("self.") and path.count(".") == 2:
            _, kept, method = path.split(".")
            by_rounds = any(v.dep & OWN_STATE and not v.dep & RANK for v in frame.rounds)
            if method in _TAKES_OUT and (by_rounds or is_by_own_state(frame)):
                frame.link.by_state.add((me.sort[1], me.sort[2], kept))
    if name:
        key = (me.sort[1], me.sort[2], name)
        frame.puts[key] = frame.puts.get(key, True) and is_by_batch(frame)
        if is_by_own_state(frame):
            frame.link.by_state.add(key)


def take_over_puts(frame: Operators, puts: dict[Kept, bool], function: Function, owner: str) -> None:
    """A method is called that puts something into what its object keeps."""
    by_batch, by_state = is_by_batch(frame), is_by_own_state(frame)
    for key, by in puts.items():
        if by_state:
            frame.link.by_state.add(key)
        if owner == "self" or function.name == frame.function.name:  # it is our own caller's affair
            frame.puts[key] = frame.puts.get(key, True) and (by or by_batch)
        else:
            frame.link.puts[key].add((function.name, (frame.file, frame.at), by or by_batch))


def is_filled_by_batches(link: Link, key: Kept) -> bool:
    """Whether all who put something into a container of an object do so only where the rank's own batch is good for it."""
    rows = link.puts.get(key, set())
    if not rows or not all(by for *_, by in rows):
        return False
    project, sites = link.project, {(method, site) for method, site, _ in rows}
    own = [(at, project.function(key[0], at)) for at in project.methods_of(key[0], key[1]).values()]
    todo = [f.name for at, f in own if key[2] in containers(f) and ("", (key[0], at)) not in sites]
    seen = set(todo)
    while todo:
        name = todo.pop()
        for where, f in project.callers_by_name(name):
            if f.owner == key[1] and where[0] == key[0]:
                todo += [f.name] if f.name not in seen else []
                seen.add(f.name)
            elif f.name != name and sites.isdisjoint(((name, where), ("", where))):
                return False
    return True


def set_by_threads(project: Project) -> Iterator[tuple[Kept, Value]]:
    """What a function sets that runs in a thread, where no method of its object waits for it: how far it is, each rank has for itself."""
    for (file, at), f in project.functions.items():
        if not f.owner or "Thread" not in f.words:
            continue
        functions = project.files[file].functions
        if any(x.owner == f.owner and not _WAITS.isdisjoint(x.words) for x in functions):
            continue
        made = (n for n in calls_in(f.body) if name_of(n) == "Thread")
        names = {n.path for n in (call.given("target", 1) for call in made) if isinstance(n, Ref)}
        for x in functions:
            if (x.name in names and x.inside == at) or (f"self.{x.name}" in names and x.owner == f.owner):
                flags = {
                    t.path[5:]
                    for n in x.bindings
                    for t in n.targets
                    if isinstance(t, Ref)
                    and t.path[:5] == "self."
                    and isinstance(n.value, Const)
                    and isinstance(n.value.value, bool)
                }
                yield from (((file, f.owner, name), Value(LOCAL, sort=sorts.TEST)) for name in flags)
                yield from (((file, f.owner, name), Value(LOCAL, sort=sorts.BESIDE)) for name in containers(x))


def note_keys(frame: Operators, owner: str, name: str) -> None:
    """An attribute of an object of the project has other keys on each rank."""
    me = frame.ref(owner).sort
    if me is not None and me[0] == "obj":
        frame.link.keyed.add((me[1], me[2], name))


def is_dictionary(frame: Operators, path: str) -> bool:
    """Whether a name of this function, or an attribute of its object, begins as an empty dictionary."""
    of_object = path.startswith("self.")
    key = (frame.file, -1, frame.function.owner) if of_object else (frame.file, frame.at, "")
    known = frame.link.dictionaries.get(key)
    if known is None:
        functions = [frame.function]
        if of_object:
            functions = [f for f in frame.source.functions if f.owner == frame.function.owner]
        bound = (pair for f in functions for n in f.bindings for pair in n.pairs())
        known = {t.path for t, v in bound if isinstance(t, Ref) and is_new_dictionary(v)}
        frame.link.dictionaries[key] = known
    return path in known
