"""What ranks must come to together though no collective is named there: the stages of a pipeline, norms over all ranks, the making of a sharded model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from unhang.lint import known, sorts
from unhang.lint.divergence import Cause, finding_of
from unhang.lint.ir import Call, Const, Expr, Function, Op, Ref, With, calls_in
from unhang.lint.special import called_name, name_of, paths_in
from unhang.lint.values import DIFFERS, DRAWN, MOST_WAY, NO_PARAMS, RANK, Effect, Place, Summary, Value, mixed

if TYPE_CHECKING:
    from unhang.lint.branches import Branches
    from unhang.lint.operators import Operators
    from unhang.lint.passing import Passing

_ENDS = {f"torch.distributed.{name}": name.lstrip("i") for name in ("send", "isend", "recv", "irecv")}
_TRACES = {"torch.jit.trace", "torch.jit.trace_module"}
_ASKS_OTHERS = re.compile(r"!=|(?<!is )\bnot\b")
_ASKS_MANY = re.compile(r"[<>%]| in ")
_OF_MODEL = re.compile(r"transformers\.\w*Model\w*\.from_pretrained")
_STAGES, _NORMS = "stages", "norms"
UNNAMED = {_STAGES, _NORMS}


def note_call(frame: Passing, node: Call, full: str, name: str, args: list[Value]) -> None:
    """A call of a library: one end of a message, a trace of the inner module, a model that is made in parts."""
    if (end := _ENDS.get(full)) is not None:
        group = node.given("group", 2)
        of = frame.group_of(group) if group is not None else ""
        frame.messages.append(Effect(end, of, (frame.place(node, name),)))
    elif name == "generate" and isinstance(node.func, Ref):
        if frame.ref(node.func.path.rpartition(".")[0]).sort == sorts.RAW:
            note_parts(frame, node, name)
    elif args and args[0].sort in (sorts.RAW, sorts.INNER) and (full in _TRACES or name == "add_graph"):
        note_norms(frame, node, name)
    elif name == "from_pretrained" and _OF_MODEL.fullmatch(full) and _makes_parts(frame):
        frame.emit(Effect("broadcast", "", (frame.place(node, name),)))


def runs_inner(
    frame: Operators, node: Call, name: str, sort: tuple[Any, ...] | None, args: list[Value]
) -> Value | None:
    """The inner module is called; what it gives, where each rank leaves out something else."""
    if sort not in (sorts.RAW, sorts.INNER):
        return None
    note_norms(frame, node, name)
    if sort == sorts.RAW:
        note_parts(frame, node, name)
    if sort == sorts.INNER or not frame.link.drops_out or frame.link.is_evaluated(frame.function):
        return None
    return Value(mixed(*args).dep & DIFFERS | DRAWN)


def note_norms(frame: Operators, node: Call, name: str) -> None:
    """The inner module of a wrapped one runs while it trains: its norms meet those of all ranks, where they are converted."""
    if not frame.link.norms_meet or frame.link.is_evaluated(frame.function):
        return
    is_told = any("sync" in c.text.lower() for c, *_ in frame.conditions)  # whoever asks so takes care of that
    is_copy = any("ema" in p.lower() for e in (node.func, *node.args) for p in paths_in(e))
    if not is_told and not is_copy:
        frame.emit(Effect(_NORMS, "", (frame.place(node, name),), is_sure=False))


def note_parts(frame: Operators, node: Call, name: str) -> None:
    """The inner module of an engine runs that has a part of each parameter alone: its layers are gathered from all ranks, unless that was done before."""
    if frame.link.parts_every_layer and "GatheredParameters" not in frame.function.words:
        frame.emit(Effect("forward", "", (frame.place(node, name),), "engine"))


def is_counted_up(function: Function, e: Expr) -> bool:
    """Whether it is a number of rounds: `epoch * len(loader) + i`. What is done in one of them is done some day."""
    bound = [n.value for n in function.bindings if e in n.targets] if isinstance(e, Ref) else [e]
    return bool(bound) and all(isinstance(v, Op) and v.op in ("+", "*", "-") for v in bound)


def take_messages(frame: Operators, summary: Summary, place: Place) -> None:
    """A function that is called sends or receives something."""
    frame.messages += [e._replace(way=(place, *e.way)[:MOST_WAY]) for e in summary.messages]


def part_messages(frame: Operators, cause: Value, names: Iterable[str], mark: int) -> None:
    """Messages from `mark` on are sent or received by some ranks alone. `names`: of what the condition asks for."""
    if len(frame.messages) > mark and (cause.dep & RANK or _asks_property(frame, names)):
        frame.messages[mark:] = [e._replace(is_often=True) for e in frame.messages[mark:]]


def _asks_property(frame: Operators, names: Iterable[str]) -> bool:
    """Whether a condition asks for a property of what is called like its class, and that is by the rank: `if stages.is_first`."""
    for path in names:
        owner, _, name = path.rpartition(".")
        at = frame.link.project.by_receiver(owner, name, is_exact=True) if owner else None
        if at is not None and frame.link.project.function(*at).is_property:
            return bool(frame.link.summary(*at).returns.dep & RANK)
    return False


def close_messages(frame: Operators, summary: Summary) -> None:
    """A function in which some ranks receive, and some send, hands something on from rank to rank: all of them must come to it."""
    if not frame.messages:
        return
    first = {e.op: e for e in reversed(frame.messages)}
    parted = {e.op: e for e in reversed(frame.messages) if e.is_often}
    if len(parted) == 2:
        got = parted["recv"]
        frame.effects.append(Effect(_STAGES, "", got.way, is_sure=False))
    else:
        summary.messages = [e._replace(is_often=False) for e in first.values()]


def found_alone(frame: Branches, cause: Cause, here: list[Effect], there: list[Effect]) -> None:
    """One rank alone comes to what all must come to."""
    v = cause.value
    if not v.dep & RANK or v.group or not cause.is_told or (v.zero is None and _ASKS_MANY.search(cause.text)):
        return
    if any(e.op in UNNAMED for e in here) == any(e.op in UNNAMED for e in there):
        return
    one = next(e for e in here + there if e.op in UNNAMED)
    if one.op == _NORMS and v.zero is None:
        return
    if one.op == _STAGES and (one in here) is bool(_ASKS_OTHERS.search(cause.text)):
        return  # it is all but one that come to it: a role of their own
    if one.op == _NORMS:
        one = one._replace(op="forward", hidden="SyncBatchNorm")
    frame._report(finding_of(cause, one, frame.path), one)


def found_in_turns(frame: Branches, s: With, mark: int) -> None:
    """`with accelerator.main_process_first():` the others wait at a barrier until the first rank is done."""
    calls = [i for i in s.items if isinstance(i, Call) and called_name(i) in known.IN_TURNS]
    made = [e for e in frame.effects[mark:] if e.param < 0 and e.is_sure and not e.group and e.hidden != "module"]
    if not calls or not made or frame.link.project.methods_called(called_name(calls[0])):
        return
    text = f"{calls[0].func.path}()" if isinstance(calls[0].func, Ref) else called_name(calls[0])
    waits = Effect("barrier", "", (Place(frame.path, s.line, 0, text),))
    cause = Cause(Value(RANK, NO_PARAMS, zero=True), s.line, text, frame.path)
    frame._report(finding_of(cause, made[0], frame.path, other=waits), made[0])


def _makes_parts(frame: Operators) -> bool:
    """Whether this file tells DeepSpeed to keep a part of each parameter alone from the beginning (ZeRO's stage 3): models are made by all ranks together."""
    told = (n for f in frame.source.functions if "DeepSpeedPlugin" in f.words for n in calls_in(f.body))
    plugins = [n for n in told if name_of(n) == "DeepSpeedPlugin" and n.given("zero_stage") == Const(3)]
    return any(n.given("zero3_init_flag") in (None, Const(True)) for n in plugins)
