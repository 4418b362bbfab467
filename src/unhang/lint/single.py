"""Rules on one call, one handler, one function: collectives where they cannot be matched, tensors that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from unhang.lint import known, sorts
from unhang.lint.arguments import ARGUMENTS, value_given
from unhang.lint.conditions import gives_up, off_by_default
from unhang.lint.divergence import GROUPS, how_it_differs
from unhang.lint.doubts import is_told_after
from unhang.lint.ir import Attr, Call, Const, Found, Handler, Leave, Loop, Op, Ref, Stmt, calls_in
from unhang.lint.libraries import Collective
from unhang.lint.special import name_of
from unhang.lint.tensors import OF_SHARE, OWN_PART, OWN_WIDTH, is_padded_alone, is_padded_to_a_length
from unhang.lint.values import (
    DIFFERS,
    DOUBT,
    LONGEST,
    LOSS,
    RANK,
    TOLD,
    UNEVEN,
    UNKNOWN,
    Conditional,
    Effect,
    Summary,
    Thread,
    Value,
    is_as_wanted,
)

if TYPE_CHECKING:
    from unhang.lint.divergence import Cause
    from unhang.lint.operators import Operators

_BROAD = {
    *("Exception", "BaseException", "RuntimeError", "ValueError", "OutOfMemoryError", "OSError", "IOError"),
    *("AssertionError", "Empty", "TimeoutError", "ConnectionError", "JSONDecodeError", "UnicodeDecodeError"),
}  # fmt: skip
_OF_MACHINES = {"Exception", "BaseException", "RuntimeError", "OutOfMemoryError", "OSError", "IOError"}
_FEATURE_TESTS = {
    *("ImportError", "ModuleNotFoundError", "AttributeError", "NotImplementedError"),
    *("StopIteration", "KeyboardInterrupt"),
}  # fmt: skip
# What is no good for one rank is so for all.
_OF_ARGUMENTS = {"TypeError", "AssertionError"}
_SAME_FOR_ALL = {
    *("int", "float", "str", "bool", "len", "getattr", "hasattr", "setattr", "isinstance", "print", "format"),
    *("append", "dict", "list", "import_module", "find_spec", "version", "Version", "parse", "is_available"),
    *("is_initialized", "get_rank", "get_world_size", "get_backend", "init_process_group", "destroy_process_group"),
    *("new_group", "info", "debug", "warning", "error", "signature", "get", "index", "device_count", "device"),
    *("set_device", "synchronize"),
    *known.NAMES,
}  # fmt: skip
_LAST = {"main", "<module>", "cli"}  # what fails in it is the end of the process
_READS_ALL = {"all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", "gather"}


def _effects_of(frame: Operators, v: Value) -> list[Effect]:
    return [e for e in frame.link.made_by(v, "()") if e.param < 0 and e.op != "destroy"]


# Calls.


def found_in_call(frame: Operators, name: str, full: str, node: Call, args: list[Value]) -> None:
    """Asks the rules on single calls."""
    rule = _CALLS.get(name)
    if rule is not None:
        rule(frame, full, node, args)
    given = ARGUMENTS.get(name or full.rpartition(".")[2])
    if given is not None:
        given(frame, full, node, args)
    if name == "gathered":
        _tensors(frame, Collective(full), node, args, True)
        alone = any(is_padded_alone(frame.function, e, node.line) for e in node.args)
        parts = [one for v in args for one in (v.sort[1] if v.kind == "tuple" else (v,))]
        alone |= any(v.dep & LONGEST for v in parts)
        if alone and not is_padded_to_a_length(frame.source.functions):
            frame.found("LNT303", node, how=OWN_WIDTH, call=_text(node))
    made = known.collective(full) if full else None
    if made is not None and made.op in _READS_ALL and "object" not in full and full.startswith("torch."):
        _tensors(frame, made, node, args)


def _thread(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """A thread that makes collectives beside the main one."""
    given = value_given(node, args, "target", 1)
    if full == "threading.Thread" and given is not None:
        _beside(frame, node, given[1])


def _submitted(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """A function that is handed to a thread of a pool, or to a timer."""
    at = {"submit": 0, "to_thread": 0}.get(full.rpartition(".")[2] or _text(node).rpartition(".")[2], 1)
    owner = _text(node).lower()
    has_threads = any(n.startswith(("threading", "asyncio", "concurrent")) for n in frame.source.names.values())
    is_of_pool = has_threads and ("executor" in owner or "thread" in owner)
    if len(args) > at and (full == "threading.Timer" or "to_thread" in owner or is_of_pool):
        _beside(frame, node, args[at], True, args[at + 1 :])


def _beside(frame: Operators, node: Call, given: Value, is_pool: bool = False, args: Sequence[Value] = ()) -> None:
    offset = int(given.kind == "bound")
    effects = [
        e for e in _effects_of(frame, given)
        if all(
            args[i - offset].const is UNKNOWN or is_as_wanted(args[i - offset].const, wanted)
            for i, wanted in e.needs if isinstance(i, int) and 0 <= i - offset < len(args)
        )
    ]  # fmt: skip
    if effects:
        found = Found("LNT206", node.line, node.column + 1)
        by = (frame.file, frame.at)
        frame.link.threads.append(Thread(frame.path, by, given.sort, effects, found, is_pool, frame.link.when))


def _signal(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    if full == "signal.signal" and len(args) > 1:
        frame.link.handlers.append(args[1])
    if full in ("signal.signal", "atexit.register", "weakref.finalize"):
        at = 0 if full == "atexit.register" else 1
        if len(args) > at and (effects := _effects_of(frame, args[at])):
            frame.found("LNT204", node, effects[0], where=full)


def _loader(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    for name in ("collate_fn", "worker_init_fn"):
        given = value_given(node, args, name)
        if given is not None and (effects := _effects_of(frame, given[1])):
            frame.found("LNT205", node, effects[0], where=name)


def _forward(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """A flag that differs between ranks, given to the forward of a wrapped module."""
    for e, v in zip(node.args, args, strict=True):
        is_flag = isinstance(e, Op) and e.op in ("not", "and", "or", "==", "!=", "<", ">", "in", "not in")
        if is_flag and v.dep & RANK:
            frame.found("LNT109", node)


def _log(frame: Operators, full: str, node: Call, args: list[Value]) -> None:
    """A dictionary that has other keys on each rank, reduced key by key."""
    if args and args[0].dep & UNEVEN and node.given("sync_dist") == Const(True):
        of = node.args[0]
        frame.found("LNT110", node, collective=_text(node), condition=of.path if isinstance(of, Ref) else "it")


def found_in_stop(frame: Operators, path: str, line: int, cause: Cause) -> None:
    """A flag that stops a trainer, set where only some ranks come, or when each of them thinks so, and not broadcast after that."""
    by_rank, is_own = cause.value.dep & RANK, cause.value.dep & DIFFERS == LOSS
    words = {
        "condition": cause.text,
        "kind": path if by_rank or is_own else "stop",
        "collective": "the next step",
        "line": str(line),
    }
    way = [(frame.path, cause.line, f"the condition `{cause.text}` {how_it_differs(cause.value)}")]
    code, variant = ("LNT108", "flag" if by_rank else "own") if by_rank or is_own else ("LNT106", "left")
    frame.link.report(frame.path, Found(code, line, 1, words, way, variant=variant))


_CALLS: dict[str, Callable[[Operators, str, Call, list[Value]], None]] = {
    "Thread": _thread, **dict.fromkeys(("submit", "Timer", "to_thread", "run_in_executor"), _submitted),
    "signal": _signal, "register": _signal, "finalize": _signal, "DataLoader": _loader, "forward": _forward,
    "log_dict": _log,
}  # fmt: skip


def _tensors(frame: Operators, made: Collective, node: Call, args: list[Value], copies: bool = False) -> None:
    """A tensor whose memory a collective cannot use as it is, or whose size each rank has for itself. `copies`: the library makes dense ones."""
    asks_before = any(e.param < 0 for e in frame.effects)  # for sizes, perhaps
    asks_sizes = any(e.op in _READS_ALL and not e.hidden for e in frame.effects[:-1])
    for e, v in zip(node.args, args, strict=True):
        if isinstance(e, Call) and isinstance(e.func, Ref) and name_of(e) in ("contiguous", "clone", "detach"):
            e = Ref(e.func.path.rpartition(".")[0])
            v = frame.ref(e.path) if v.sort is None else v
        is_given = isinstance(e, Ref) and frame.parameter(e.path) >= 0 and not asks_before
        if is_given and v.kind == "param" and not copies and made.op in ("all_gather", "all_reduce"):
            found = Found("LNT303", node.line, node.column + 1, {"how": "", "call": _text(node)})
            frame.later.append(Conditional(v.sort[1], "is ragged", found, frame.path))
        if v.sort == sorts.REPEATED:
            how = "as many copies as this rank has drawn"
            found = Found("LNT303", node.line, node.column + 1, {"how": how, "call": _text(node)})
            frame.later += [Conditional(i, "is drawn", found, frame.path) for i in v.params]
        if v.dep & LONGEST and not copies and made.op == "all_gather" and v.sort is None:
            frame.found("LNT303", node, how=OWN_WIDTH, call=_text(node))
        if v.sort == sorts.PART and not (copies or asks_before or frame.is_special) and made.op == "all_gather":
            frame.found("LNT303", node, how=OWN_PART, call=_text(node))
        is_object = "object" in name_of(node)  # of any size
        if v.sort == sorts.MADE and not (is_object or asks_sizes or frame.is_special):
            frame.found("LNT303", node, how=OF_SHARE, call=_text(node))
        if v.kind not in ("odd", "ragged") or isinstance(e, Const):
            continue
        if v.sort[0] == "odd" and not copies:
            frame.found("LNT304", node, how=str(v.sort[1]), call=_text(node))
        elif v.sort[0] == "ragged" and made.op in ("all_gather", "all_reduce", "gather"):
            frame.found("LNT303", node, how=str(v.sort[1]), call=_text(node))


def _text(node: Call) -> str:
    return node.func.path if isinstance(node.func, Ref) else node.func.name if isinstance(node.func, Attr) else "call"


def found_in_endless_loop(frame: Operators, s: Loop, line: int) -> None:
    """`while True: yield from items[rank::world]`: without an item it never ends."""
    is_each = len(s.body) == 1 and isinstance(s.body[0], Leave) and s.body[0].kind == "yield"
    value = frame.value(s.over) if is_each and isinstance(s.over, Op) else None
    if value is not None and value.sort == ("share", "slice"):
        frame.link.report(frame.path, Found("LNT307", line, 1))


# Handlers.


def found_in_handler(
    frame: Operators,
    handler: Handler | None,
    end: str,
    made: Sequence[Effect],
    inside: Sequence[Effect],
    is_fallback: bool = False,
) -> bool:
    """An `except` (None: `finally`) after a body that made these effects, with effects of its own; whether it is found to go on."""
    own = [e for e in inside if e.param < 0 and e.op != "destroy"]
    made = [
        e for e in made
        if (e.is_sure or e.hidden) and e.op != "destroy" and (e.op not in ("fit", *GROUPS) or handler is None)
    ]  # a whole training that failed is over, and groups fail on all ranks  # fmt: skip
    if handler is None:
        if own and made:
            first = own[0].way[0]
            frame.found("LNT202", first, own[0])
        return False
    if any(e.op == "destroy" for e in inside):  # the others fail as well, and begin anew with it
        return False
    if is_feature_test(handler) or (is_fallback and inside) or frame.is_leaving or frame.is_alone():
        return False
    if _alone_before(frame, handler, end, made, own):
        return True
    if handler.names and all(frame.caught.get(n) == TOLD and n not in _OF_MACHINES for n in handler.names):
        return True  # all have agreed to raise it
    is_broad = is_broad_handler(handler)
    hidden = [e for e in made if e.hidden or (e.param >= 0 and e.method in ("()", "backward"))]
    collective = [e for e in made if e.param < 0]
    is_skipped = end == "return" and {"forward", "backward"} <= {e.op for e in made if e.hidden}  # the next batch comes
    off = off_by_default(frame.link.project, frame.function)
    goes_on = (end in ("", "continue") or is_skipped) and not gives_up(handler.body, off)
    if not is_broad or not goes_on or not (hidden or (collective and frame.loops)):
        return False
    if any(not e.hidden and e.param < 0 for e in made) and is_told_after(frame, handler):
        return True  # those that have not failed ask in the body, and the collective that waits is the same
    effect = (collective or hidden)[0]
    found = Found(
        "LNT203", handler.line, 1, {"caught": _caught(handler), "collective": effect.way[-1].text}, effect.lines,
        calls=effect.calls + (0 if is_skipped or (frame.loops and not frame.is_ordered()) else DOUBT),
    )  # fmt: skip
    if effect.param < 0:
        frame.link.report(frame.path, found)
    elif backward := [e for e in hidden if e.method == "backward"]:
        frame.later.append(Conditional(backward[0].param, "backward", found, frame.path))
    else:
        return False
    return True


def found_in_save(
    frame: Operators, handler: Handler, body: Sequence[Stmt], made: Sequence[Effect], own: Sequence[Effect]
) -> bool:
    """Finds a handler of all failures with a collective of its own, in or after a loop in which the others wait for another one."""
    first = next((e for e in own if e.param < 0 and e.is_sure), None)
    inside = [e for e in made if e.is_often and e.param < 0 and not e.is_order and e.op != "destroy"]
    last = handler.body[-1] if handler.body else None
    if not inside and frame.loops and isinstance(last, Leave) and last.kind == "raise" and first is not None:
        name = first.way[0].text.removesuffix("()").rpartition(".")[2]
        is_met = any(n.line > first.way[0].line and name_of(n) == name for n in calls_in(frame.function.body))
        inside = [e for e in made if e.hidden in ("ddp", "fsdp", "fsdp2", "engine") and not is_met]
    waits = [e for e in inside if (e.is_sure or e.hidden) and not e.needs and not e.ifs + e.ifs_here]
    if first is None or not waits or first.op in {e.op for e in waits} or any(e.op == "destroy" for e in own):
        return False
    is_alone = frame.is_alone() or frame.is_leaving or frame.is_ordered()
    if first.ifs_here > len(frame.conditions) + 1 or first.group or is_alone or not is_broad_handler(handler):
        return False
    if (
        is_feature_test(handler)
        or not fails_at(body)
        or all(frame.caught.get(n) == TOLD for n in handler.names or [""])
    ):
        return False
    frame.found("LNT202", first.way[0], first, variant="except", caught=_caught(handler), other=waits[0].way[-1].text)
    return True


def _alone_before(frame: Operators, handler: Handler, end: str, made: Sequence[Effect], own: Sequence[Effect]) -> bool:
    """Finds a handler that goes on after what one rank alone reads or writes has failed, before the others wait for it."""
    waits = [e for e in made if e.after and e.param < 0 and not e.is_order]
    goes_on = end not in ("raise", "exit") and not gives_up(handler.body)
    goes_on = goes_on and (frame.loops > 0 or frame.function.name not in _LAST)
    is_caught = is_broad_handler(handler) or any(dep & RANK for dep in frame.caught.values())
    if not waits or own or not goes_on or not is_caught or is_told_after(frame, handler):
        return False
    words = {"caught": _caught(handler), "collective": waits[0].way[-1].text, "condition": waits[0].after}
    variant = "task" if waits[0].after.endswith("()") else "alone"
    found = Found("LNT203", handler.line, 1, words, waits[0].lines, [], False, variant, waits[0].calls)
    frame.link.report(frame.path, found)
    return True


def fails_at(body: Sequence[Stmt]) -> int:
    """The line of the first call that can fail on one rank alone, as it reads, computes or asks somebody; 0: there is none."""
    calls = (n for n in calls_in(body) if _text(n).rpartition(".")[2] not in _SAME_FOR_ALL)
    return min((n.line for n in calls), default=0)


def after_failure(body: Sequence[Stmt], made: Sequence[Effect]) -> list[Effect]:
    """What is made after such a call, or in it."""
    line = fails_at(body)
    return [e for e in made if e.way[0].line > line or (e.way[0].line == line and len(e.way) > 1)]


def hands_over(frame: Operators, body: Sequence[Stmt]) -> bool:
    """Whether a handler ends with a call of what nobody knows: another way to do the same, perhaps."""
    match body:
        case [*_, Leave(value=Call(func=Ref(path=path)))]:
            return frame.ref(path).kind in ("", "param")
    return False


def is_broad_handler(handler: Handler) -> bool:
    """Whether it catches what may happen to one rank alone: memory, data, the machine."""
    return not handler.names or any(n in _BROAD for n in handler.names)


def is_feature_test(handler: Handler) -> bool:
    """Whether all ranks fail alike: a module that is not there, the end of an iterator."""
    return any(n in _FEATURE_TESTS for n in handler.names) or (
        bool(handler.names) and _OF_ARGUMENTS.issuperset(handler.names)
    )


def close_handler(frame: Operators, own: Sequence[Effect], others: Sequence[Effect], caught: str) -> None:
    """The collectives of a handler, against what the other ranks make: in the body, or after the statement."""
    extra = [e for e in own if e.param < 0 and e.is_sure and e.op != "destroy" and e.op not in {o.op for o in others}]
    if extra:
        first = extra[0].way[0]
        frame.found("LNT201", first, extra[0], caught=caught)


def _caught(handler: Handler) -> str:
    return f"except {', '.join(handler.names)}" if handler.names else "except"


# Functions.


def found_in_function(frame: Operators, summary: Summary) -> None:
    """Methods that run at another time, or in another process, than the training."""
    function = frame.function
    effects = [e for e in summary.effects if e.param < 0 and e.op != "destroy"]
    if not effects or not function.owner:
        return
    first = effects[0].way[0]
    if function.name == "__del__":
        frame.found("LNT204", first, effects[0], where="__del__")
    elif function.name in ("__getitem__", "__getitems__"):
        bases = frame.link.project.base_names(frame.file, function.owner)
        is_dataset = any(b.rpartition(".")[2].endswith("Dataset") for b in bases)
        is_sharded = effects[0].way[-1].text.rpartition(".")[2] in ("full_tensor", "redistribute")  # samples are
        if is_dataset and not is_sharded:
            frame.found("LNT205", first, effects[0], where=function.name)
