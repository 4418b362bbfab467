"""Samplers that give the ranks unequal shares, lists that are filled up, and loaders that a project deals out itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AnySet
from functools import partial
from typing import TYPE_CHECKING, Any

from unhang.lint import known, sorts
from unhang.lint.ir import (
    Call,
    Const,
    Do,
    Expr,
    Found,
    Function,
    If,
    Leave,
    Loop,
    Node,
    Op,
    Ref,
    calls_in,
    nodes_in,
    statements_in,
)
from unhang.lint.keeping import has_all_gradients, is_by_batch
from unhang.lint.special import name_of, paths_in
from unhang.lint.values import DRAWN, LOCAL, LOSS, MAYBE, NO_PARAMS, RANK, UNEVEN, Given, Summary, Value

if TYPE_CHECKING:
    from unhang.lint.operators import Operators
    from unhang.lint.project import Project

_IS_ASKED = re.compile(r"eval|val(?:id|$|_)|test|infer|predict|sequential|export|dump|bench|debug")
_COUNTED = re.compile(
    r"pad|total_(?:size|num)|drop|even(?:ly|$|_)|trunc|repeat|cycle|infinite|num_samples|wrap|fill|resample|replacement"
)
_WORLD = re.compile(
    r"world(?:_size)?|n_?gpus|num_gpus|num_replicas|num_ranks|n_ranks|(?:dp|data_parallel)(?:_world)?_size|num_shards|nranks|num_processes"
)
_HELD = re.compile(r"(\w+)\.\w+ is not None")
_DRAWN = ("share", "drawn")  # as many as an order decides that this rank has drawn
_MOST_CALLERS = 20
NUMBER = "dataloader_idx"  # the name by which Lightning gives it
_GIVES = ("val_dataloader", "test_dataloader", "predict_dataloader")
_LEAVES_ALONE = ("use_distributed_sampler", "replace_sampler_ddp")
OF_ALL = re.compile(rf"[<>]=?\s*(?:\w+\.)*_?(?:get_)?(?:{_WORLD.pattern})(?:\(\))?\s*(?:$|[-):]|and|or)")


def put(frame: Operators, path: str, is_begun: bool) -> None:
    """Something is put into a list. `is_begun`: it was empty, and this is a loop: how many get in may be this rank's own affair."""
    name, old = path[:-7], frame.ref(path[:-7])
    if old.dep & UNEVEN and old.sort != _DRAWN:
        frame.env[name] = Value(sort=sorts.PADDED)
    elif path.endswith(".append") and is_begun and old.sort != _DRAWN:
        given = frame.last_given[0].dep & (LOSS | MAYBE) if frame.last_given else 0
        held = [m[1] for c, *_ in frame.conditions if (m := _HELD.fullmatch(c.text))]
        by = by_given_size(frame)
        if by:
            frame.env[name] = Value(params=by, sort=("sized", by))
        elif frame._uneven_loops and not any(depth >= frame.loops for *_, depth in frame.conditions):
            frame.env[name] = Value(UNEVEN, sort=sorts.MADE)
        elif by_draw(frame) and not _is_counted_off(frame.function, name):  # an order of its own decides
            frame.env[name] = Value(UNEVEN, sort=_DRAWN)
        elif _is_by_rank(frame, path):
            frame.env[name] = Value(UNEVEN, sort=("share", "picked"))
        elif held and not any(map(partial(is_reduced, frame), held)):
            frame.env[name] = Value(given, sort=sorts.PICKED)
        else:
            of = frame.last_given[0].sort if frame.last_given else None
            many = (
                ("many", of) if of is not None and of[0] == "ragged" else None
            )  # joined, they are as long as it happens
            frame.env[name] = Value(given, sort=sorts.FILLED if not held and is_by_batch(frame) else many)


def by_draw(frame: Operators) -> bool:
    """Whether an item more comes of what this rank has drawn: not one of two, whichever it is."""
    lines = {c.line for c, *_ in frame.conditions if c.value.dep & DRAWN and not c.value.dep & RANK}
    return any(not n.orelse and not isinstance(n.body[-1], Leave) for n in _conditions(frame.function, lines))


def by_given_size(frame: Operators) -> frozenset[int]:
    """The parameter by whose items' sizes a part more is made of it: `if total + len(row) > limit`."""
    inside = [c for c, _, depth in frame.conditions if depth >= frame.loops and ("<" in c.text or ">" in c.text)]
    params = frozenset(frame._over_parameters[-1:])
    is_by = bool(params) and any(params <= c.value.params and not c.value.dep for c in inside)
    return params if is_by else NO_PARAMS


def _conditions(function: Function, lines: AnySet[int]) -> list[If]:
    """The conditions on these lines."""
    found = (n for n in statements_in(function.body) if isinstance(n, If) and n.line in lines) if lines else ()
    return list(found)


def _is_by_rank(frame: Operators, put_in: str) -> bool:
    """Whether some ranks alone put something into a list in this round, or have left the round before: those of this rank are in it."""
    inside = [c for c, _, depth in frame.conditions if depth >= frame.loops]
    left = [e.cause for e in frame.ways_out if e.kind == "continue" and e.loops == frame.loops]
    lines = {c.line for c in (*inside, *left) if c.value.dep & (RANK | LOCAL) and not c.value.group}
    asked = _conditions(frame.function, lines)
    asked = [s for s in asked if not any(isinstance(n, Op) and n.op == "//" for n in nodes_in(s.test))]  # even blocks
    puts = ([any(n.func == Ref(put_in) for n in calls_in(side)) for side in (s.body, s.orelse)] for s in asked)
    return any(not all(sides) for sides in puts)


def _is_counted_off(function: Function, name: str) -> bool:
    """Whether a condition asks how long a list is: it gets as many as it shall have, perhaps."""
    tests = [n.test if isinstance(n, If) else n.over for n in nodes_in(function.body) if isinstance(n, If | Loop)]
    return any(name_of(n) == "len" and n.args == [Ref(name)] for n in calls_in(tests))


def is_reduced(frame: Operators, name: str) -> bool:
    """Whether a name is that of each parameter of a module all of whose gradients a wrapper has reduced: all ranks have the same ones."""
    loops = (n for n in nodes_in(frame.function.body) if isinstance(n, Loop) and n.target is not None)
    return any(name in paths_in(n.target) and has_all_gradients(frame, n.over) for n in loops if n.target is not None)


def is_part_of(e: Expr, whole: Expr) -> bool:
    """`items[:n]`, of `items`."""
    match e:
        case Op(op="[]", parts=[of, Op(op=":")]):
            return of == whole
    return False


def is_filled_up(op: str, parts: list[Expr]) -> bool:
    """`made + [blank] * (count - len(made))`."""
    match op, parts:
        case "+", [whole, Op(op="*", parts=[left, right])]:
            counts = (n for n in calls_in([p for p in (left, right) if isinstance(p, Op)]) if name_of(n) == "len")
            return any(n.args == [whole] for n in counts)
    return False


def is_evened(frame: Operators, e: Expr) -> bool:
    """Whether what is dealt out here is filled up before, or refused where the ranks do not divide it: here, or by all who call this function."""
    if not isinstance(e, Ref) or _refuses(frame.function, e):
        return isinstance(e, Ref) or _evens(frame.link.project, frame.file, e)
    at = frame.parameter(e.path)
    if at < 0:
        return any(_evens(frame.link.project, frame.file, n.value) for n in frame.function.bindings if e in n.targets)
    function, project = frame.function, frame.link.project
    given = [
        (where, caller, call.given(e.path, at - function.is_method))
        for where, caller in project.callers_by_name(function.name)[:_MOST_CALLERS]
        for call in calls_in(caller.body)
        if name_of(call) == function.name
    ]
    return bool(given) and all(
        arg is not None and any(_evens(project, where[0], v) for v in _bound(caller, arg))
        for where, caller, arg in given
    )


def _bound(caller: Function, arg: Expr) -> list[Expr]:
    """What is given, or what its name is bound to."""
    return [arg, *(n.value for n in caller.bindings if arg in n.targets)]


def _evens(project: Project, file: int, e: Expr) -> bool:
    """Whether an expression is a call of a function of the project that fills up what it is given, or refuses it."""
    symbol = project.symbol_of(file, e.func.path) if isinstance(e, Call) and isinstance(e.func, Ref) else None
    if symbol is None or symbol.kind != "fn":
        return False
    function = project.function(symbol.file, symbol.at)
    fills = any(isinstance(n, Op) and is_filled_up(n.op, n.parts) for n in nodes_in(function.body))
    return fills or any(_refuses(function, Ref(p)) for p in function.parameters)


def _refuses(function: Function, e: Ref) -> bool:
    """`if len(items) % world: raise ValueError(...)`, `assert len(items) % world == 0`."""
    tests: list[Expr] = []
    for n in statements_in(function.body):
        match n:
            case If(test=test, body=[*_, Leave(kind="raise")]) | Do(value=Op(op="==", parts=[test, Const(value=0)])):
                tests.append(test)
    rests = (p for p in nodes_in(tests) if isinstance(p, Op) and p.op == "%" and _is_world(p.parts[1]))
    return any(name_of(c) == "len" and c.args == [e] for p in rests for c in calls_in(p))


def is_turn(frame: Operators, op: str, parts: list[Expr], compared: Value) -> bool:
    """`i % world == rank`, where `i` is no rank: whether what is counted is dealt out to this rank."""
    for turn, own in (parts, parts[::-1]) if op in ("==", "!=") and compared.dep == RANK else ():
        match turn:
            case Op(op="%", parts=[number, _]) if frame.value(own).sort == ("rank",):
                return frame.loops > 0 and not frame.value(number).dep & RANK
    return False


def is_rounded_up(op: str, parts: list[Expr]) -> bool:
    """`(len(items) + world - 1) // world`: how many each rank has, but the last."""
    if op != "//" or not _is_world(parts[1]) or not isinstance(parts[0], Op) or parts[0].op not in ("+", "-"):
        return False
    return paths_in(parts[1]) <= paths_in(parts[0])


def scores_share(frame: Operators, given: Given) -> bool:
    """Whether a call is given the inner module of a wrapped one, and a loader of this rank's share: what it makes of these is of this rank's batches."""
    return any(v.sort == sorts.RAW for _, v in given.values()) and any(
        _is_of_share(frame, e) for e, _ in given.values()
    )


def _is_of_share(frame: Operators, e: Expr, steps: int = 3) -> bool:
    """Whether a name is that of a loader with a `DistributedSampler`, or of such a sampler."""
    if not isinstance(e, Ref) or not steps:
        return any(name_of(n) == "DistributedSampler" for n in calls_in(e))
    own = [f for f in frame.source.functions if f is frame.function or (f.owner and f.owner == frame.function.owner)]
    made = (v for f in own for n in f.bindings for t, v in n.pairs() if t == e)
    parts = (v.given("sampler") if isinstance(v, Call) and name_of(v) == "DataLoader" else v for v in made)
    return any(_is_of_share(frame, part, steps - 1) for part in parts if part is not None)


def found_in_shares(frame: Operators, summary: Summary) -> None:
    """`yield from items[rank::world]` of a sampler: with a rest some ranks have one item more, unless they are counted somewhere."""
    function = frame.function
    if function.name != "__iter__" or not summary.returns.dep & UNEVEN or not function.owner:
        return
    if _IS_ASKED.search(function.owner.lower()) or _IS_ASKED.search(frame.path.rpartition("/")[2].lower()):
        return
    project = frame.link.project
    is_told = summary.returns.sort == sorts.ENDS_BY_RANK  # whatever it counts besides
    if not is_sampler(project, frame.file, function.owner):
        return
    if not is_told and is_counted(project, frame.file, function.owner):
        return
    words = {"sampler": function.owner, "condition": function.owner}
    frame.link.report(frame.path, Found("LNT110", function.line, 1, words, [], [], False, "sampler"))


def is_sampler(project: Project, file: int, cls: str) -> bool:
    """Whether a class is a sampler, by its bases."""
    return any(b.rpartition(".")[2].endswith("Sampler") for b in project.base_names(file, cls))


def is_counted(project: Project, file: int, cls: str, is_used: bool = False) -> bool:
    """Whether a sampler pads, drops or counts what it gives each rank, as it reads; others divide by the number of ranks. `is_used`: its names alone say less."""
    own = [f for f in project.all_methods(file, cls) if f.name != "__len__"]
    if not is_sampler(project, file, cls):
        return any(map(divides, own))
    bound = [(t.path, n.value) for f in own for n in f.bindings for t in n.targets if isinstance(t, Ref)]
    lengths = {name for name, _ in bound} - {name for name, value in bound if name_of(value) != "len"}
    return any(counts_items(f, lengths if is_used else frozenset()) for f in own)


def holds_items(project: Project, file: int, cls: str) -> bool:
    """Whether a class is one of data, which has as many items as what it is made of says, and is filled up or cut nowhere."""
    own = project.all_methods(file, cls)
    names = {f.name for f in own}
    has_items = "__iter__" in names or {"__len__", "__getitem__"} <= names
    return has_items and not any(map(counts_items, own))


def falls_short(project: Project, sort: tuple[Any, ...], args: list[Value]) -> bool:
    """Whether an object is made of a share that is longer on the last rank, and of how many all have on the average. To fill up to that, without a cut, is not enough."""
    told = {v.sort for v in args}
    goes = project.method(sort[1], sort[2], "__iter__") if {sorts.LONGER, sorts.ROUNDED_UP} <= told else None
    nodes = list(nodes_in(project.function(*goes).body)) if goes is not None else []
    leaves = (isinstance(n, Leave) and n.kind in ("break", "return", "continue") for n in nodes)
    cuts = (isinstance(n, Call) and name_of(n) in ("islice", "zip", "cycle") for n in nodes)
    return bool(nodes) and not any(leaves) and not any(cuts)


def counts_items(function: Function, lengths: AnySet[str] = frozenset()) -> bool:
    """Whether it counts items by the number of ranks, other than to pick its own, or says so in its names. `lengths`: names of what is counted as it is."""
    paths = (n.path for n in nodes_in(function.body) if isinstance(n, Ref) and n.path not in lengths)
    names = (path.rpartition(".")[2].lower() for path in paths)
    return any(_COUNTED.search(name) for name in names) or divides(function, ("//", "*", "/"))


def divides(function: Function, ops: tuple[str, ...] = ("//",)) -> bool:
    """Whether it divides something by the number of ranks."""
    for n in nodes_in(function.body):
        if isinstance(n, Op) and n.op in ops and any(map(_is_world, n.parts)):
            return True
        if isinstance(n, Op) and n.op == "%" and _is_world(n.parts[1]) and not _is_pick(function, n):
            return True
    return False


def _is_world(e: Expr) -> bool:
    return any(_WORLD.fullmatch(p.rpartition(".")[2].lower().lstrip("_").removeprefix("get_")) for p in paths_in(e))


def _is_pick(function: Function, rest: Node) -> bool:
    """`i % world == rank`."""
    compared = (n for n in nodes_in(function.body) if isinstance(n, Op) and n.op in ("==", "!=") and rest in n.parts)
    return any(
        known.rank_kind(name_of(p)) is not None
        for n in compared
        for p in n.parts
        if p != rest and not isinstance(p, Const)
    )


def deals_out(project: Project) -> bool:
    """Whether Lightning is told to leave the loaders alone, and those of an evaluation are made of what the rank says, without padding."""
    trainers = (n for _, f in project.callers_by_name("Trainer") for n in calls_in(f.body) if name_of(n) == "Trainer")
    if not any(n.given(word) == Const(False) for n in trainers for word in _LEAVES_ALONE):
        return False
    makers = [(key, f) for key, f in project.functions.items() if f.name in _GIVES]
    return any(_are_made_by_rank(project, key[0], list(_with_helpers(project, key[0], f))) for key, f in makers)


def _with_helpers(project: Project, file: int, function: Function) -> Iterator[Function]:
    """A function, and those of its class or file that it calls."""
    yield function
    words = {w.rpartition(".")[2] for w in function.words}
    for f in project.files[file].functions:
        if f.name in words and f is not function and f.inside <= 0 and f.owner in ("", function.owner):
            yield f


def _are_made_by_rank(project: Project, file: int, functions: list[Function]) -> bool:
    words = {w for f in functions for w in f.words}
    made = (project.symbol_of(file, w) for w in words)
    classes = [s for s in made if s is not None and s.kind == "class"]
    if "DistributedSampler" in words or any(map(counts_items, functions)):
        return False
    if any(
        is_counted(project, s.file, s.name) or any(map(counts_items, project.all_methods(s.file, s.name)))
        for s in classes
    ):
        return False
    paths = (n.path for f in functions for n in nodes_in(f.body) if isinstance(n, Ref))
    return any(known.rank_kind(p.rpartition(".")[2]) == "rank" for p in paths)
