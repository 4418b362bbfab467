"""What in the program's files decides for a rank alone, where its calls part elsewhere: a count that a test goes by, a mode of a library that is switched."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path as Folder
from typing import NamedTuple

from unhang.analyze.program.callpath import Path, is_same_function
from unhang.analyze.program.may_differ import OWN, SAME, may_differ
from unhang.analyze.program.source import (
    Condition,
    condition_of,
    frame_at,
    function_at,
    nearest,
    nodes_around,
    scopes_at,
    surroundings,
)
from unhang.analyze.program.trees import (
    Function,
    functions_named,
    inside,
    last_name,
    names_in,
    nodes_of,
    program_files,
    program_nodes,
    remembered,
)
from unhang.analyze.program.ways_out import is_counted
from unhang.model import Frame

# Methods that say which calls FSDP, DDP or DeepSpeed make in a backward or forward; attributes that do.
_SWITCHES = frozenset(
    ("set_reshard_after_forward", "set_reshard_after_backward", "set_requires_gradient_sync", "set_requires_all_reduce",
     "set_unshard_in_backward", "set_gradient_accumulation_boundary", "set_is_last_backward", "gradient_checkpointing_enable",
     "gradient_checkpointing_disable")
)  # fmt: skip
_OF_ROUNDS = re.compile(r"micro|accum|step|last|sync|epoch", re.IGNORECASE)
_METRICS = ("callback_metrics", "logged_metrics")
_MODES = frozenset(
    ("require_backward_grad_sync", "require_forward_param_sync", "broadcast_buffers", "gradient_checkpointing")
)
_PARTS_OF_STEP = frozenset(("accumulate_grad_batches", "gradient_accumulation_steps"))  # settings of a framework, too


class Decision(NamedTuple):
    """`condition`: what all ranks should decide together, at `at`; `leads`: the line to which it leads, and how."""

    at: Frame
    condition: Condition
    leads: Frame
    how: str


def lagging_count(way: Path, frame: Frame, conditions: Sequence[Condition]) -> Decision | None:
    """For a line that runs by a count: what decides whether the count grows, where that may come out differently on the ranks.

    `way`: to a call, outermost first, through the frame.
    """
    if not conditions or any(c.suspicion > SAME for c in conditions):
        return None
    asked = {ast.unparse(n) for c in conditions for n in ast.walk(c.test) if isinstance(n, ast.Name | ast.Attribute)}
    around = nodes_around(frame.file, frame.line)
    within: ast.AST | None = next((n for n in around if isinstance(n, ast.ClassDef)), None)
    within = within or next((n for n in around if isinstance(n, Function)), None)
    for node in inside(within, ast.AugAssign):
        if ast.unparse(node.target) in asked:
            how = f"`{ast.unparse(node.target)}`, by which it goes, grows only then"
            found = list(_ways_to(way, frame, node.lineno))
            if found:
                at, condition = max(found, key=lambda x: x[1].suspicion)
                return Decision(at, condition, frame, how)
    return None


def _ways_to(way: Path, frame: Frame, line: int) -> Iterator[tuple[Frame, Condition]]:
    """The conditions around a line that may differ, and those on the way to its function where a call went through that."""
    function = surroundings(frame.file, line).function
    frames = [Frame(frame.file, line, function)]
    if function == frame.function and frame in way:
        frames += [f for f in way[: way.index(frame)] if f.function != "<module>"]
    for f in frames:
        for c in surroundings(f.file, f.line).conditions:
            if c.suspicion > SAME and not c.depends_on_rank:
                yield f, c


@remembered
def switched_mode(folder: str) -> Decision | None:
    """The one line of the program's files that switches a mode of a library by what may differ between the ranks; None where there are several."""
    found = [one for path in program_files(folder) for one in _switched_in(path)]
    return found[0] if len(found) == 1 else None


def _switched_in(path: str) -> Iterator[Decision]:
    for node in nodes_of(path):
        name, value = _switch(node)
        if not name:
            continue
        assert isinstance(node, ast.stmt)
        around = surroundings(path, node.lineno)
        at = Frame(path, node.lineno, around.function)
        value = value.operand if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not) else value
        if value is not None and not isinstance(value, ast.Constant):
            source = _set_once(path, node.lineno, value)
            scopes = scopes_at(path, source.lineno)
            if not _is_of_rounds(source) and may_differ(path, source, scopes, by_rank=False) > SAME:
                yield Decision(Frame(path, source.lineno, around.function), condition_of(path, source), at, name)
                continue
        own = [c for c in around.conditions if c.suspicion > SAME and not c.depends_on_rank]
        own = [c for c in own if not _is_of_rounds(c.test)] if name in _PARTS_OF_STEP else own
        if own and not any(_is_of_rounds(c.test) for c in own):
            c = max(own, key=lambda c: c.suspicion)
            yield Decision(Frame(path, c.line, around.function), c, at, name)


def _is_of_rounds(test: ast.expr) -> bool:
    """Whether a test goes by the parts of a step, which are as many on all ranks, or by what nothing is known of but its name."""
    names = [last_name(n) for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute)]
    return isinstance(test, ast.Name | ast.Attribute) or is_counted(test) or any(map(_OF_ROUNDS.search, names))


def _switch(node: ast.AST) -> tuple[str, ast.expr | None]:
    """(name, value) of a statement that switches a mode; ("", None) of any other."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=args)) if name in _SWITCHES:
            return name, args[0] if args else None
        case ast.Assign(targets=[ast.Attribute(attr=name)], value=value) if name in _MODES | _PARTS_OF_STEP:
            return name, value
        case ast.AugAssign(target=ast.Attribute(attr=name)) if name in _PARTS_OF_STEP:
            return name, None
    return "", None


def _set_once(path: str, line: int, value: ast.expr) -> ast.expr:
    """What a variable or attribute is set to, where its function sets it once, before the line; else the expression itself."""
    name = ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else ""
    assigned = inside(function_at(path, line) if name else None, ast.Assign)
    sets = [n for n in assigned if [ast.unparse(t) for t in n.targets] == [name]]
    return sets[0].value if len(sets) == 1 and sets[0].lineno < line else value


def made_with(folder: str, names: Sequence[str], argument: str) -> Frame | None:
    """The one line of the program's files that calls one of these without giving an argument."""
    found = [
        frame_at(path, n.lineno)
        for path, n in program_nodes(folder)
        if isinstance(n, ast.Call) and last_name(n.func) in names and argument not in {k.arg for k in n.keywords}
    ]
    return found[0] if len(found) == 1 else None


def asked_by(folder: str, argument: str) -> Frame | None:
    """The one line of the program's files that gives an argument, and not as False."""
    found = [
        frame_at(path, n.lineno)
        for path, n in program_nodes(folder)
        if isinstance(n, ast.Call)
        and any(k.arg == argument and ast.unparse(k.value) not in ("False", "None") for k in n.keywords)
    ]
    return found[0] if len(found) == 1 else None


def late_buffer(folder: str) -> tuple[Frame, str] | None:
    """The one buffer of a module that is registered empty and filled later: the line that fills it, and its name."""
    nodes = list(program_nodes(folder))
    empty = {name for _, n in nodes if (name := _registered_empty(n))}
    sets = [(path, n, t) for path, n in nodes if isinstance(n, ast.Assign) for t in n.targets]
    fills = {
        (frame_at(path, n.lineno), t.attr) for path, n, t in sets if isinstance(t, ast.Attribute) and t.attr in empty
    }
    fills = {(frame, name) for frame, name in fills if frame.function != "__init__"}
    return fills.pop() if len(fills) == 1 else None


def _registered_empty(node: ast.AST) -> str:
    """The name by which a module registers a buffer without a tensor."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "register_buffer":
        return ""
    given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "tensor")]
    match node.args[:1], given:
        case [ast.Constant(value=str(name))], [ast.Constant(value=None)]:
            return name
    return ""


def unsynced_monitor(folder: str) -> tuple[Frame, str] | None:
    """The one value that a callback of Lightning monitors and that the program logs without `sync_dist`: its line and name."""
    calls = [(path, n) for path, n in program_nodes(folder) if isinstance(n, ast.Call)]
    given = [k.value for _, n in calls for k in n.keywords if k.arg == "monitor"]
    given += [n.args[0] for _, n in calls if last_name(n.func) == "EarlyStopping" and n.args]
    return _unsynced_log(calls, {n.value for n in given if isinstance(n, ast.Constant) and isinstance(n.value, str)})


def _unsynced_log(calls: Iterable[tuple[str, ast.Call]], names: Collection[str]) -> tuple[Frame, str] | None:
    """The one `log` of one of these names without `sync_dist`: its line, and the name."""
    logs = [(path, c) for path, c in calls if last_name(c.func) == "log" and c.args]
    named = [(path, c, c.args[0].value) for path, c in logs if isinstance(c.args[0], ast.Constant)]
    own = [(path, c, name) for path, c, name in named if not any(k.arg == "sync_dist" for k in c.keywords)]
    found = [(frame_at(path, c.lineno), name) for path, c, name in own if isinstance(name, str) and name in names]
    return found[0] if len(found) == 1 else None


def logged_by_some(at: Frame) -> PartialLog | None:
    """A `log` of a line that a condition of the rank's own lets some ranks leave out, without `sync_dist`."""
    logs = [n for n in nodes_around(at.file, at.line) if isinstance(n, ast.Call) and last_name(n.func) == "log"]
    return _under_own_test(at, logs[0]) if len(logs) == 1 else None


def unsynced_metric(frame: Frame, test: ast.expr) -> tuple[Frame, str] | None:
    """The metric of Lightning that a test in the frame's function goes by, and that the program logs without `sync_dist`: its line and name."""
    asked = {ast.unparse(n) for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute)}
    sets = inside(nearest(frame.file, frame.line, ast.FunctionDef), ast.Assign)
    read = [test, *(n.value for n in sets if asked & {ast.unparse(t) for t in n.targets})]
    if not any(n.attr in _METRICS for value in read for n in inside(value, ast.Attribute)):
        return None
    nodes = list(program_nodes(str(Folder(frame.file).parent)))
    calls = [(path, n) for path, n in nodes if isinstance(n, ast.Call)]
    own = {id(a) for _, n in calls if last_name(n.func) == "log" for a in n.args}
    named = {n.value for _, n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in own}
    return _unsynced_log(calls, named)


class PartialLog(NamedTuple):
    """A value that is logged over all ranks, but only where a test holds. `at`: the line; `whole`: it as it would be on every rank."""

    at: Frame
    test: str
    whole: str


def partial_log(folder: str) -> PartialLog | None:
    """The one such line of the program's files: a `log(..., sync_dist=True)` under a condition of the rank's own, or a `log_dict` whose keys one leaves out."""
    found = [one for path, n in program_nodes(folder) if isinstance(n, ast.Call) for one in _partly(path, n)]
    return found[0] if len(found) == 1 else None


def _partly(path: str, call: ast.Call) -> Iterator[PartialLog]:
    is_synced = any(k.arg == "sync_dist" and ast.unparse(k.value) == "True" for k in call.keywords)
    name, at = last_name(call.func), frame_at(path, call.lineno)
    if not is_synced or name not in ("log", "log_dict") or not call.args:
        return
    if name == "log_dict":
        value = _set_once(path, call.lineno, call.args[0])
        if isinstance(value, ast.DictComp) and any(g.ifs for g in value.generators):
            tests = " and ".join(ast.unparse(t) for g in value.generators for t in g.ifs)
            over = " ".join(f"for {ast.unparse(g.target)} in {ast.unparse(g.iter)}" for g in value.generators)
            kept = f"{{{ast.unparse(value.key)}: ({ast.unparse(value.value)}) if {tests} else 0.0 {over}}}"
            yield PartialLog(replace(at, line=value.lineno), tests, kept)
        return
    if (partial := _under_own_test(at, call)) is not None:
        yield partial


def _under_own_test(at: Frame, call: ast.Call) -> PartialLog | None:
    """A `log(name, value)` that stands under one condition of the rank's own, as it would be on every rank."""
    own = [c for c in surroundings(at.file, at.line).conditions if c.suspicion > SAME]
    if len(own) != 1 or len(call.args) != 2:
        return None
    name, value = map(ast.unparse, call.args)
    return PartialLog(at, own[0].text, f"self.log({name}, ({value}) if {own[0].text} else 0.0, ..., sync_dist=True)")


def called_with(path: str, line: int, test: ast.expr) -> tuple[str, str]:
    """(what is called, the argument) of the one call on a line that is given what a test asks to be there; two empty texts where there is none."""
    asked = names_in(test)
    calls = [c for around in nodes_around(path, line)[-4:] for c in inside(around, ast.Call)]
    found = {
        (ast.unparse(c.func), a.id)
        for c in calls
        if c.lineno == line and isinstance(c.func, ast.Attribute) and isinstance(c.func.value, ast.Name)
        for a in c.args[:1]
        if isinstance(a, ast.Name) and a.id in asked
    }
    return found.pop() if len(found) == 1 else ("", "")


def class_at(frame: Frame) -> str | None:
    """The class in one of whose methods a line stands."""
    return next((n.name for n in nodes_around(frame.file, frame.line) if isinstance(n, ast.ClassDef)), None)


def goes_over(frame: Frame) -> str:
    """The name of the dict of objects that a line gives to a library, or that the loop around it goes over; empty where that is not one name."""
    nodes = nodes_around(frame.file, frame.line)
    loops = [n.iter.func for n in nodes if isinstance(n, ast.For) and isinstance(n.iter, ast.Call)]
    over = [f.value for f in loops if isinstance(f, ast.Attribute) and f.attr in ("items", "values")]
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.args]
    named = [*over, *(c.args[0] for c in calls)]
    return next((n.id for n in named if isinstance(n, ast.Name)), "")


def received_of_anybody(path: str, line: int) -> tuple[int, str, int] | None:
    """(line, text, line): of a function that receives from whoever sends first, and then from whoever sends next: the first such call, and the last."""
    function = next((n for n in nodes_around(path, line) if isinstance(n, ast.FunctionDef)), None)
    calls = [c for c in inside(function, ast.Call) if ast.unparse(c.func) in ("dist.recv", "torch.distributed.recv")]
    of_anybody = [c for c in calls if len(c.args) == 1 and not {k.arg for k in c.keywords} & {"src", "group_src"}]
    found = sorted(of_anybody, key=lambda c: c.lineno)
    return (found[0].lineno, ast.unparse(found[0]), found[-1].lineno) if len(found) > 1 else None


class OptionalOutput(NamedTuple):
    """A model gives `name` only if `test` holds, at `at`."""

    at: Frame
    test: str
    name: str


@remembered
def optional_output(folder: str) -> OptionalOutput | None:
    """The one output of a `forward` in the files of a folder that hangs on the data of a batch."""
    forwards = functions_named(folder, "forward")
    found = [one for path, forward in forwards for one in _given_under_test(path, forward)]
    return found[0] if len(found) == 1 else None


def _given_under_test(path: str, forward: ast.FunctionDef) -> Iterator[OptionalOutput]:
    gives = {name for r in inside(forward, ast.Return) for name in names_in(r)}
    empty = [s for s in inside(forward, ast.Assign) if isinstance(s.value, ast.Constant) and s.value.value is None]
    before = {t.id for s in empty for t in s.targets if isinstance(t, ast.Name)}
    for test in (n for n in inside(forward, ast.If) if not n.orelse):
        sets = {t.id for s in test.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)}
        conditions = surroundings(path, test.body[0].lineno).conditions
        for name in sorted(sets & gives & before) if conditions and conditions[-1].suspicion >= OWN else ():
            yield OptionalOutput(Frame(path, test.lineno, forward.name), ast.unparse(test.test), name)


class MadeWhereNeeded(NamedTuple):
    """A module is wrapped for all ranks where a rank first meets a key that is not in a table. `at`: the test; `whole`: the `if`, `makes`: what is under it."""

    at: Frame
    whole: str
    makes: str
    key: str


def made_where_needed(frames: Sequence[Frame], others: Iterable[Path]) -> MadeWhereNeeded | None:
    """Of an exception in a DDP constructor, innermost frame first: the `if key not in table` on the way to it, to which all ranks come in each round.

    `others`: from where the other ranks made their last calls.
    """
    is_made = any(f.file.endswith("/nn/parallel/distributed.py") and f.function == "__init__" for f in frames)
    mine = [f for f in frames if f.is_user] if is_made else []
    for i, frame in enumerate(mine[:-1]):
        gate = nearest(frame.file, frame.line, ast.If)
        own = surroundings(frame.file, frame.line).conditions
        if not own or gate is None:
            continue
        above, meets = (
            [f for f in mine[i + 1 :] if f.function != "<module>"],
            [p for p in others if any(is_same_function(f, mine[i + 1]) for f in p)],
        )
        is_open = len(own) > 1 or any(c.suspicion for f in above for c in surroundings(f.file, f.line).conditions)
        match gate.test, gate.body:
            case ast.Compare(left=ast.Name(id=key), ops=[ast.NotIn()]), [ast.Expr(value=ast.Call()) as makes] if (
                meets and not is_open and not gate.orelse
            ):
                at = Frame(frame.file, gate.lineno, frame.function)
                return MadeWhereNeeded(at, ast.unparse(gate), ast.unparse(makes), key)
        return None
    return None


def loader_kinds(folder: str) -> Decision | None:
    """The one function of the program that gives Lightning a loader with a length or one without, by what may differ between the ranks.

    One without fits any data: it leads there, and all ranks go there where one has to.
    """
    bases = {
        n.name: {last_name(b) for b in n.bases}
        for _, n in program_nodes(folder)
        if isinstance(n, ast.ClassDef) and n.bases
    }
    found = []
    for path, function in program_nodes(folder):
        if not isinstance(function, ast.FunctionDef) or not function.name.endswith("_dataloader"):
            continue
        made = {kind for c in inside(function, ast.Call) for kind in bases.get(last_name(c.func), ())}
        gives = [r.lineno for r in inside(function, ast.Return) if isinstance(r.value, ast.Call)]
        own = [c for line in gives for c in surroundings(path, line).conditions if c.suspicion > SAME]
        gate = nearest(path, own[0].line, ast.If) if own else None
        if gate is None or not {"IterableDataset", "Dataset"} <= made or len({c.line for c in own}) > 1:
            continue
        under = {kind for c in inside(gate, ast.Call) for kind in bases.get(last_name(c.func), ())}
        at = Frame(path, gate.lineno, function.name)
        leads = at if "IterableDataset" in under else Frame(path, max(gives), function.name)
        found.append(Decision(at, condition_of(path, gate.test), leads, "else the loader has no length"))
    return found[0] if len(found) == 1 else None
