"""Small questions on conditions: whether they part ranks at all, and what they say of names."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from unhang.lint import known, sorts
from unhang.lint.ir import (
    Attr,
    Call,
    Const,
    Do,
    Expr,
    Function,
    If,
    Leave,
    Loop,
    Op,
    Ref,
    Stmt,
    Try,
    With,
    calls_in,
    nodes_in,
)
from unhang.lint.special import name_of, paths_in
from unhang.lint.values import (
    DATA,
    DIFFERS,
    LOSS,
    MAYBE,
    MAYBE_NONE,
    NONE_BY_BATCH,
    OF_DATA,
    OWN_BATCH,
    OWN_STATE,
    RANK,
    UNEVEN,
    UNKNOWN,
    Needs,
    Value,
    Wanted,
    mixed,
)

if TYPE_CHECKING:
    from unhang.lint.operators import Operators
    from unhang.lint.project import Project


_SHARDED = {"DTensor", "ShardedTensor", "FSDP", "FullyShardedDataParallel", "FSDPModule"}
_OF_SHARDS = {
    "full_tensor",
    "_local_tensor",
    "to_local",
    "redistribute",
    "device_mesh",
    "placements",
    "ds_id",
    "ds_shape",
    "ds_tensor",
}
_OF_THE_JOB = ("zero", "local zero", "last", "rank", "local", "stage")  # not one of a part of the ranks


def is_kept(test: Expr, function: Function) -> bool:
    """`key in kept`, where the function keeps what it made for the key: all ranks make it at the same call, each for its own key."""
    for part in nodes_in(test):
        match part:
            case Op(op="in" | "not in", parts=[Ref(path=key), Ref(path=kept)]):
                place = Op("[]", [Ref(kept), Ref(key)])
                return any(place in n.targets for n in function.bindings)
    return False


def is_once(test: Expr) -> bool:
    """Whether it asks for what is made at the first call, and kept: `len(kept) == 0`, `self.kept is None`, `not hasattr(f, "kept")`."""
    match test:
        case Op(op="not", parts=[Call(func=Ref(path="hasattr"))]) | Op(op="not in"):
            return True
        case Op(op="==", parts=[Call(func=Ref(path="len"), args=[Ref()]), Const(value=0)]):
            return True
        case Op(op="not", parts=[Ref(path=path)]) | Op(op="is", parts=[Ref(path=path), Const(value=None)]):
            return "." in path
    return False


def is_refusal(body: list[Stmt]) -> bool:
    """Whether a branch says that there is an error, and leaves: what was given is no good, and all ranks were given it."""
    if len(body) != 2 or not isinstance(body[0], Do) or not isinstance(body[1], Leave):
        return False
    return name_of(body[0].value) in ("error", "critical", "exception")


def constants(e: Expr) -> tuple[Any, ...] | None:
    """The plain values that it is, or that are in it; None: it is something else."""
    parts = e.parts if isinstance(e, Op) and e.op == "seq" else [e]
    return tuple(p.value for p in parts if isinstance(p, Const)) if all(isinstance(p, Const) for p in parts) else None


def parts_asked(text: str, name: str) -> str:
    """`part:` and the attributes of a parameter, where a condition asks for these alone: those of what came from another path are the same."""
    asked = re.findall(rf"\b{re.escape(name)}\b((?:\.\w+)*)", text)
    return f"part:{' '.join(a[1:] for a in asked)}" if asked and all(asked) else ""


def parameters_asked(function: Function, texts: Sequence[str]) -> frozenset[int]:
    """The parameters, by number, that conditions name."""
    words = {w for text in texts for w in re.findall(r"(?<![\w.])[a-z_]\w*", text)}
    own = enumerate(function.parameters)
    return frozenset(i for i, name in own if name in words and (i or not function.is_method))


def asks_for_others(test: Expr) -> bool:
    """Whether a condition asks if there are other ranks at all: not `i % world_size == rank`."""
    match test:
        case Ref(path=path):
            return path.rpartition(".")[2] in known.SINGLE
        case Op(op="%" | "//"):
            return False
        case Op(parts=parts):
            return any(map(asks_for_others, parts))
        case Call(func=func, args=args):
            return asks_for_others(func) or any(map(asks_for_others, args))
    return False


def asks_for_shards(test: Expr) -> bool:
    """Whether a condition asks for a tensor or module being sharded: who gathers a whole one is asked for nothing else by it."""
    match test:
        case Call(func=Ref(path="isinstance"), args=[_, kinds]):
            return any(p.rpartition(".")[2] in _SHARDED for p in paths_in(kinds))
        case Call(func=Ref(path="hasattr"), args=[_, Const(value=value)]):
            return value in _OF_SHARDS
        case Op(op="and", parts=parts):
            return any(map(asks_for_shards, parts))
        case Call() | Ref():
            return name_of(test).lower().endswith("dtensor")
    return False


def tells(test: Expr, v: Value) -> bool:
    """Whether a condition names itself what makes it differ.

    Who has the work of a queue is told by whoever fills it: on all ranks alike, perhaps.
    """
    if not v.dep & DIFFERS or (v.dep & RANK and not v.dep & DATA and v.zero is not None and not v.group):
        return True  # `self.enabled = rank == 0`, before
    if v.sort == sorts.BLOCK_LENGTH:
        return True  # whoever asks so knows that some have nothing
    names = paths_in(test)
    if v.dep & RANK and not v.dep & DATA:
        if any(n.endswith(".n") for n in names):
            return True  # of a progress bar that most ranks disable
        names |= {n.name for n in nodes_in(test) if isinstance(n, Attr)}
        return any(known.rank_kind(n.rpartition(".")[2]) in _OF_THE_JOB for n in names)
    return not any(known.QUEUE.search(part) for n in names for part in n.lower().split("."))


def asks_for_rank(frame: Operators, test: Expr) -> bool:
    """Whether a condition names what is the number of the rank, however it is called: `r in ranks`."""
    return any(frame.ref(p).sort == ("rank",) and not frame.ref(p).group for p in paths_in(test))


def asks_for_own_items(frame: Operators, test: Expr) -> bool:
    """Whether a condition asks if there is anything in what this rank has picked of all: whoever asks so knows that some have nothing."""
    match test:
        case Op(op="not", parts=[inner]):
            return asks_for_own_items(frame, inner)
        case Op(op="==" | "!=" | ">", parts=[Call(func=Ref(path="len"), args=[of]), Const(value=0)]) | (Ref() as of):
            v = frame.ref(of.path) if isinstance(of, Ref) else Value()
            return v.sort in (("share", "picked"), ("share", "slice")) and v.dep & DIFFERS == 0
    return False


def asked_for_itself(test: Expr) -> set[str]:
    """Names of which a condition asks whether they are true, or there: not what is compared with something."""
    match test:
        case Ref(path=path) | Op(op="is" | "is not", parts=[Ref(path=path), Const(value=None)]):
            return {path}
        case Op(op="not" | "and" | "or", parts=parts):
            return set().union(*map(asked_for_itself, parts))
    return set()


def as_condition(v: Value) -> Value:
    """A value where it decides: whether there is an output at all is the same on all ranks."""
    if v.sort in (sorts.COLLECTED, sorts.FILLED, sorts.OWN_KEYS) and v.const is UNKNOWN:
        return Value(OWN_BATCH if v.sort == sorts.COLLECTED else LOSS)
    if v.sort == sorts.COUNT and v.dep & OWN_BATCH:
        return v._replace(dep=v.dep | LOSS, sort=sorts.TEST)
    if v.dep & UNEVEN:  # whether this rank has anything at all
        v = v._replace(dep=v.dep | RANK)
    return v._replace(dep=v.dep & ~(DATA | MAYBE)) if v.kind in ("out", "of") else v


def picks_grads(function: Function, e: Expr, steps: int = 3) -> bool:
    """Whether it is a list of what has a gradient: `[p for p in params if p.grad is not None]`, those of such a list, or what is put into it so."""
    match e:
        case Ref(path=path) if steps:
            asked = [n for n in nodes_in(function.body) if isinstance(n, If) and _asks_grad(n.test)]
            put = Ref(f"{path}.append")
            if any(n.func == put for one in asked for n in calls_in(one.body)):
                return True
            return any(picks_grads(function, n.value, steps - 1) for n in function.bindings if e in n.targets)
        case Op(op="comp", parts=[_, *loops]):
            parts = [p for loop in loops if isinstance(loop, Op) for p in loop.parts]
            return any(map(_asks_grad, parts)) or picks_grads(function, parts[1], steps - 1)
    return False


def _asks_grad(test: Expr) -> bool:
    match test:
        case Op(op="is not", parts=[Ref(path=path), _]):
            return path.endswith(".grad")
        case Op(op="and", parts=parts):
            return any(map(_asks_grad, parts))
    return False


def is_of_first(frame: Operators, test: Expr, v: Value) -> bool:
    """Whether a condition asks for what the first rank alone has set, in this function or as a flag of its object."""
    of_object = any((frame.file, n) in frame.link.of_first for n in asked_for_itself(test))
    return bool(v.dep & RANK) and not v.group and (of_object or not frame.of_first.isdisjoint(paths_in(test)))


def is_never_a_rank(test: Expr) -> bool:
    """`local_rank == -1`: there is one process only."""
    match test:
        case Op(parts=[Ref() as of, Const(value=-1 | None)]):
            return known.rank_kind(of.path.rpartition(".")[2]) is not None
    return False


def is_for_one_process(test: Expr) -> bool:
    """`local_rank == -1 and ...`: there are no others."""
    match test:
        case Op(op="and", parts=parts):
            return any(map(is_for_one_process, parts))
        case Op(op="==" | "is"):
            return is_never_a_rank(test)
    return False


def contradicts(a: Needs, b: Needs) -> bool:
    """Whether both cannot be: one asks for what the other excludes."""
    return bool(a and b) and any((i, _opposite(wanted)) in b for i, wanted in a)


def _opposite(wanted: Wanted) -> Wanted:
    return (_OPPOSITE[wanted[0]], wanted[1]) if isinstance(wanted, tuple) else _OPPOSITE[wanted]


_OPPOSITE: dict[Any, Any] = {True: False, False: True, "some": "none", "none": "some", "in": "out", "out": "in"}


def implied(frame: Operators, test: Expr) -> tuple[Needs, Needs]:
    """What a condition says of parameters: where it is true, and where it is not."""
    nothing: Needs = frozenset()
    match test:
        case Ref():
            v = frame.ref(test.path)
            if v.kind == "with":  # `a and ...`, kept under a name
                return frozenset({(v.sort[1], True), (test.path, True)}), frozenset({(test.path, False)})
            of = v.sort[1] if v.kind == "param" else test.path
            return frozenset({(of, True)}), frozenset({(of, False)})
        case Op(op="not", parts=[inner]):
            return implied(frame, inner)[::-1]
        case Op(op="and" | "or"):
            both = [implied(frame, p) for p in test.parts]
            joined = Needs().union(*(b[test.op == "or"] for b in both))
            return (joined, nothing) if test.op == "and" else (nothing, joined)
        case Op(op="is" | "is not", parts=[Ref(path=path), Const(value=None)]):
            v = frame.ref(path)
            of = v.sort[1] if v.kind == "param" else path
            ways: tuple[Needs, Needs] = frozenset({(of, "none")}), frozenset({(of, "some")})
            return ways if test.op == "is" else ways[::-1]
        case Op(op="==" | "!=" | "in" | "not in", parts=[Ref(path=path), _]):
            among = constants(test.parts[1])
            at = frame.parameter(path)
            if among is not None and at >= 0:
                both_ways = frozenset({(at, ("in", among))}), frozenset({(at, ("out", among))})
                return both_ways if test.op in ("==", "in") else both_ways[::-1]
    return nothing, nothing


def asks_if_there(test: Expr, used: Expr) -> bool:
    """Whether a condition asks if the batch has what is used where it has: `x.cuda() if x is not None else None`."""
    match test:
        case Op(op="is" | "is not", parts=[of, Const(value=None)]):
            return of in list(nodes_in(used))
        case Op(op="in" | "not in", parts=[Const(value=str()) as word, _]):
            return word in list(nodes_in(used))
    return False


def is_choice(e: Expr, v: Value) -> bool:
    """A setting, in `sharded or rank == 0`: where all must come, all come. Whether there are others at all is no such setting."""
    if isinstance(e, Op) and e.op in ("in", "==", "!=", "not in") and any(map(is_word, e.parts)):
        return not v.dep & DIFFERS  # `"stage_3" in args.strategy`
    plain = isinstance(e, Ref | Call) and not v.dep & DIFFERS and name_of(e) not in known.SINGLE
    return plain and known.rank_kind(name_of(e)) is None and known.IS_DISTRIBUTED.fullmatch(name_of(e)) is None


def is_left_by_choice(s: If) -> bool:
    """`if strategy != "sharded" and rank != 0: return`: where all must come, all come."""
    if not isinstance(s.test, Op) or s.test.op != "and" or not s.body or not isinstance(s.body[-1], Leave):
        return False
    return any(isinstance(p, Op) and p.op in ("!=", "not in") and any(map(is_word, p.parts)) for p in s.test.parts)


def is_defined(e: Expr, v: Value) -> bool:
    """Whether it is the name of a function or class, which is always true: `not evaluate`, where no argument of that name is meant."""
    return isinstance(e, Ref) and "." not in e.path and v.kind in ("fn", "class")


def is_word(e: Expr) -> bool:
    """Whether it is one of a few words: a text, or a member of an enumeration (`Kind.DEEPSPEED`)."""
    match e:
        case Const(value=str()):
            return True
        case Ref(path=path):
            return "." in path and path.rpartition(".")[2].isupper()
    return False


def gives_up(body: Sequence[Stmt], off: Set[str] = frozenset()) -> bool:
    """Whether every way through it ends the rank, or tells the others. `off`: settings that nobody turns on."""
    for s in body:
        match s:
            case Leave(kind="raise"):
                return True
            case Do(value=Call() as call) if _ends(call):
                return True
            case If(test=Const(value=value)):
                if gives_up(s.body if value else s.orelse, off):
                    return True
            case If() if gives_up(s.body, off) and {p.rpartition(".")[2] for p in paths_in(s.test)} & known.SINGLE:
                return True
            case If():  # one that is asked for by a setting is the user's choice
                if gives_up(s.body, off) and (
                    (isinstance(s.test, Ref) and s.test.path not in off) or gives_up(s.orelse, off)
                ):
                    return True
            case Loop() | With() | Try():
                if gives_up(s.body, off):
                    return True
    return False


def off_by_default(project: Project, function: Function) -> set[str]:
    """Parameters of a function that are false unless somebody says otherwise, and for which no caller gives `True`."""
    names, count = function.parameters, len(function.parameters) - len(function.defaults)
    off = {names[i + count]: i + count for i, e in enumerate(function.defaults) if e == Const(False)}
    callers = project.callers_by_name(function.name) if off else []
    calls = [n for _, f in callers for n in calls_in(f.body) if name_of(n) == function.name]
    return {n for n, at in off.items() if all(c.given(n, at - function.is_method) != Const(True) for c in calls)}


def _ends(call: Call) -> bool:
    name = call.func.path if isinstance(call.func, Ref) else name_of(call)
    last = name.rpartition(".")[2].lower()
    return name in known.ENDS_PROCESS or any(
        w in last for w in ("exit", "abort", "fail", "kill", "raise", "shutdown", "stop", "error_handler", "terminate")
    )


def all_of(values: Sequence[Value]) -> Value:
    """What it takes to come under all of these conditions; `zero`: whether it is the first rank that does, or the others."""
    zeros = {v.zero for v in values if v.dep & RANK}
    return mixed(*values)._replace(zero=zeros.pop() if len(zeros) == 1 else None)


def none_on_some(returned: Value, told: Sequence[tuple[bool, Value]]) -> Value:
    """What is returned, where it is None on some ways: by the batch, or on some ranks; which ones, if all that comes after says so."""
    dep, zeros = returned.dep, set()
    for n, (is_none, by) in enumerate(told):
        dep |= NONE_BY_BATCH if is_none and by.dep & OF_DATA and not by.dep & RANK else 0
        others = {later for later, _ in told[n + 1 :]}
        if by.dep & OWN_STATE and not by.dep & RANK and (not is_none) in others and returned.sort is None:
            returned = returned._replace(sort=sorts.TEST)
        if by.dep & RANK and (not is_none) in others:
            dep |= MAYBE_NONE
            zeros.add(None if by.zero is None or by.group or is_none in others else by.zero != is_none)
    return returned._replace(dep=dep, zero=zeros.pop() if len(zeros) == 1 else returned.zero)


def is_fixed(frame: Operators, e: Expr) -> bool:
    """Whether it is a parameter for which a caller has given this constant."""
    return isinstance(e, Ref) and e.path in frame.fixed
