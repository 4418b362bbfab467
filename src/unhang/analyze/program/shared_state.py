"""What the program's source shows of state that ranks do not share: labels that stand for nothing, attributes that some set, paths that all move."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unhang.analyze.program.may_differ import OWN, SAME, may_differ
from unhang.analyze.program.source import frame_at, function_at, loop_around, nearest, scopes_at, surroundings
from unhang.analyze.program.trees import (
    calls_on,
    covers,
    files_of_script,
    functions_in,
    inside,
    last_name,
    names_in,
    nodes_of,
    program_files,
    program_nodes,
    remembered,
    tree_of,
)
from unhang.model import Frame

_LOSSES = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss")
_FILLS = ("full_like", "full", "where", "fill_", "masked_fill", "masked_fill_", "new_full")


def _number(node: ast.AST) -> int | None:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    return None


_OF_NONE = re.compile(r"void|ignore|pad|unlabel|unknown|none|blank|missing", re.IGNORECASE)
_LAST_OF_A_BYTE = 255  # masks of images are bytes


@remembered
def label_set(folder: str, label: int) -> Frame | None:
    """The line of the program that puts a label into a part of a tensor which stands for no class: a negative one, a byte's last, or one whose name says so."""
    nodes = list(program_nodes(folder))
    names = {t.id for _, n in nodes for t in _named(n, label)}
    is_none = label < 0 or label == _LAST_OF_A_BYTE

    def _is_it(node: ast.AST) -> bool:
        name = last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        return (is_none and _number(node) == label) or (name in names and (is_none or bool(_OF_NONE.search(name))))

    for path, n in nodes:
        puts = isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Subscript) and _is_it(n.value)
        fills = isinstance(n, ast.Call) and last_name(n.func) in _FILLS and any(map(_is_it, n.args))
        if puts or fills:
            return frame_at(path, n.lineno)  # type: ignore[attr-defined]
    return None


def _named(node: ast.AST, label: int) -> list[ast.Name]:
    is_set = isinstance(node, ast.Assign) and _number(node.value) == label
    return [t for t in node.targets if isinstance(t, ast.Name)] if is_set else []  # type: ignore[attr-defined]


class Loss(NamedTuple):
    """The call that computes a loss, or makes what does."""

    at: Frame
    text: str

    def ignores(self, label: str) -> str:
        """The same, but for items of a label."""
        inner = self.text[:-1]
        return f"{inner}{'' if inner.endswith('(') else ', '}ignore_index={label})"


def loss_at(frame: Frame) -> Loss | None:
    """Of a line that computes a loss over classes: the one call of it, on the line or where what it calls was made."""
    calls = [c for c in inside(tree_of(frame.file), ast.Call) if covers(c, frame.line)]
    own = [c for c in calls if last_name(c.func) in _LOSSES]
    if len(own) == 1:
        return _loss(frame.file, own[0])
    called = {ast.unparse(c.func) for c in calls}
    made = [
        n.value
        for n in inside(tree_of(frame.file), ast.Assign)
        if isinstance(n.value, ast.Call)
        and last_name(n.value.func) in _LOSSES
        and called & {ast.unparse(t) for t in n.targets}
    ]
    return _loss(frame.file, made[0]) if len(made) == 1 else None


def _loss(path: str, call: ast.Call) -> Loss | None:
    if any(k.arg in ("ignore_index", None) for k in call.keywords):
        return None
    return Loss(frame_at(path, call.lineno), ast.unparse(call))


def counts_labels(folder: str) -> list[Frame]:
    """The lines of the program that count by label: `torch.bincount(labels * k + ...)`."""
    return [
        frame_at(path, n.lineno)
        for path, n in program_nodes(folder)
        if isinstance(n, ast.Call) and last_name(n.func) == "bincount"
    ]


class Batch(NamedTuple):
    """The names by which a loop over a loader has the tensors of a batch, and its first line."""

    at: Frame
    names: tuple[str, ...]


def batch_of(frames: Sequence[Frame]) -> Batch | None:
    """Of a way to a line, innermost first: the innermost loop that gives tensors names, which the line in it takes."""
    for frame in frames:
        loop = loop_around(frame.file, frame.line)
        parts = loop.target.elts if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) else []
        if isinstance(loop, ast.For) and last_name(getattr(loop.iter, "func", ast.Name(""))) == "enumerate":
            parts = getattr(parts[1], "elts", []) if len(parts) == 2 else []
        names = tuple(n.id for n in parts if isinstance(n, ast.Name))
        taken = {name for c in calls_on(frame.file, frame.line) for a in c.args for name in names_in(a)}
        if isinstance(loop, ast.For) and names and len(names) == len(parts) and taken & set(names):
            return Batch(Frame(frame.file, loop.body[0].lineno, frame.function), names)
    return None


class SetBySome(NamedTuple):
    """`at`: the line that sets an attribute, in `function`. `test`, at line `gate`: what lets only some ranks come there.

    `needs`: the statements of the function that it takes, with itself; `setup`: the line of the method that all ranks run.
    """

    at: Frame
    function: str
    test: str
    gate: int
    needs: tuple[str, ...]
    setup: int


def set_by_some(folder: str, name: str, attribute: str) -> SetBySome | None:
    """The one place in a class of that name that sets an attribute, if only some ranks come there: Lightning's `prepare_data`, or a block for one rank."""
    found = [x for path in program_files(folder) for x in _sets(path, name, attribute)]
    if len(found) != 1:
        return None
    path, module, function, assigned = found[0]
    at = Frame(path, assigned.lineno, function.name)
    conditions = [c for c in surroundings(path, assigned.lineno).conditions if c.depends_on_rank]
    if function.name == "prepare_data" and not surroundings(path, assigned.lineno).conditions:
        setups = [f.lineno for f in module.body if isinstance(f, ast.FunctionDef) and f.name == "setup"]
        return SetBySome(at, function.name, "", 0, tuple(_slice(function, assigned)), setups[0]) if setups else None
    if len(conditions) == 1 and conditions[0].only_on_rank_zero:
        return SetBySome(at, function.name, conditions[0].text, conditions[0].line, (), 0)
    return None


def _sets(path: str, name: str, attribute: str) -> Iterator[tuple[str, ast.ClassDef, ast.FunctionDef, ast.Assign]]:
    for module in (n for n in nodes_of(path) if isinstance(n, ast.ClassDef) and n.name == name):
        for function in (f for f in module.body if isinstance(f, ast.FunctionDef)):
            for n in inside(function, ast.Assign):
                if f"self.{attribute}" in {ast.unparse(t) for t in n.targets}:
                    yield path, module, function, n


def _slice(function: ast.FunctionDef, last: ast.Assign) -> Iterator[str]:
    """The statements of a function that set what a later one needs, and that one."""
    wanted, taken = names_in(last.value), [last]
    for statement in reversed([s for s in function.body if s.lineno < last.lineno]):
        sets = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
        if sets & wanted:
            wanted |= names_in(statement)
            taken.insert(0, statement)  # type: ignore[arg-type]
    return (ast.unparse(s) for s in taken)


_MOVES = ("rename", "replace", "move", "rmtree")


class Moved(NamedTuple):
    """`call`, in the statement `whole` at `at`, moves or removes a path, and every rank comes to it."""

    at: Frame
    call: str
    whole: str


def moved_by_all(frames: Sequence[Frame]) -> Moved | None:
    """Of a rank that did not find a path, innermost line first: the one call, there or behind it, that moves a path on every rank."""
    for frame in frames:
        function = function_at(frame.file, frame.line)
        found = [
            c
            for c in inside(function, ast.Call)
            if _moves_path(c) and (c.end_lineno or c.lineno) >= frame.line and not _for_some(frame.file, c)
        ]
        if len(found) == 1:
            return _moved(frame.file, found[0])
        if found:
            return None
    return None


def _moves_path(call: ast.Call) -> bool:
    name = last_name(call.func)
    if name not in _MOVES or not isinstance(call.func, ast.Attribute):
        return False
    module = ast.unparse(call.func.value)
    return module in ("os", "shutil") or (name == "rename" and len(call.args) == 1)


def _for_some(path: str, call: ast.Call) -> bool:
    """Whether one rank alone comes to a call, or each has a path of its own."""
    scopes = scopes_at(path, call.lineno)
    given = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    is_own = any(may_differ(path, node, scopes, is_test=False) == OWN for node in given)
    return is_own or any(c.depends_on_rank for c in surroundings(path, call.lineno).conditions)


def _moved(path: str, call: ast.Call) -> Moved:
    """With the `if` around it that asks whether the path is there."""
    gate = nearest(path, call.lineno, ast.If)
    statement = nearest(path, call.lineno, ast.stmt)
    within = (
        gate
        if gate is not None
        and any(last_name(c.func) in ("exists", "isdir", "is_dir", "isfile") for c in inside(gate.test, ast.Call))
        else statement
    )
    assert within is not None
    return Moved(frame_at(path, within.lineno), ast.unparse(call), ast.unparse(within))


class SetLimit(NamedTuple):
    """`text`, at `at`, sets the limit of the process group; `longer` is the same with a longer one."""

    at: Frame
    text: str
    longer: str


_LIMITS = {
    "InitProcessGroupKwargs": "timeout",
    "init_process_group": "timeout",
    "DDPStrategy": "timeout",
    "FSDPStrategy": "timeout",
    "DeepSpeedStrategy": "timeout",
    "TrainingArguments": "ddp_timeout",
    "Seq2SeqTrainingArguments": "ddp_timeout",
}


def limit_set(folder: str) -> SetLimit | None:
    """The one place of the program that gives its process group a limit."""
    found = [
        (path, k)
        for path, n in program_nodes(folder)
        if isinstance(n, ast.Call)
        for k in n.keywords
        if k.arg == _LIMITS.get(last_name(n.func), "")
    ]
    if len(found) != 1:
        return None
    path, given = found[0]
    seconds = "7200" if given.arg == "ddp_timeout" else "timedelta(hours=2)"
    return SetLimit(
        frame_at(path, given.value.lineno), f"{given.arg}={ast.unparse(given.value)}", f"{given.arg}={seconds}"
    )


class ListOfCalls(NamedTuple):
    """A line that gathers a list, with one call for each item. `call`, in the statement `text`; `joined`: the statement with one call of objects."""

    at: Frame
    call: str
    text: str
    joined: str
    is_chosen: bool


def list_of_calls(frames: Sequence[Frame]) -> ListOfCalls | None:
    """Of a call that Accelerate made, innermost frame first: the line of the program that gave it a list of the rank's own length."""
    if not any(f.function == "recursively_apply" and "/accelerate/" in f.file for f in frames):
        return None
    line = next((f for f in frames if f.is_user), None)
    statement = nearest(line.file, line.line, ast.stmt) if line is not None else None
    found = [c for c in inside(statement, ast.Call) if last_name(c.func) in ("gather", "gather_for_metrics") and c.args]
    if line is None or statement is None or len(found) != 1 or hasattr(statement, "body"):
        return None
    given = _list_given(line, found[0].args[0])
    if given is None:
        return None
    call, text = ast.unparse(found[0]), ast.unparse(statement)
    joined = text.replace(call, f"gather_object({ast.unparse(found[0].args[0])})", 1)
    return ListOfCalls(line, call, text, joined, any(g.ifs for g in given.generators))


def _list_given(line: Frame, given: ast.expr) -> ast.ListComp | None:
    if isinstance(given, ast.ListComp):
        return given
    sets = [
        n.value
        for n in inside(function_at(line.file, line.line), ast.Assign)
        if ast.unparse(given) in map(ast.unparse, n.targets)
    ]
    return sets[0] if len(sets) == 1 and isinstance(sets[0], ast.ListComp) else None


_PARTS = ("val_check_interval", "limit_train_batches", "limit_val_batches")


class PartOfLoader(NamedTuple):
    """`text`, at `at`: a setting of Lightning that is a part of each rank's own loader. `made`, in `train_dataloader`: the loader, which is given `data`."""

    at: Frame
    text: str
    made: Frame | None
    data: str
    loader: str


def part_of_loader(folder: str) -> PartOfLoader | None:
    """The one such setting of the program, where each rank has a loader of its own."""
    given = [(path, k) for path, n in program_nodes(folder) if isinstance(n, ast.Call) for k in n.keywords]
    has_own = any(k.arg == "use_distributed_sampler" and ast.unparse(k.value) == "False" for _, k in given)
    parts = [(path, k) for path, k in given if k.arg in _PARTS and _is_part(k.value)]
    if not has_own or len(parts) != 1:
        return None
    path, part = parts[0]
    made = [
        (file, c)
        for file, f in program_nodes(folder)
        if isinstance(f, ast.FunctionDef) and f.name == "train_dataloader"
        for c in inside(f, ast.Call)
        if last_name(c.func) == "DataLoader" and c.args
    ]
    at, text = frame_at(path, part.value.lineno), f"{part.arg}={ast.unparse(part.value)}"
    if len(made) != 1:
        return PartOfLoader(at, text, None, "", "")
    file, call = made[0]
    data = ast.unparse(call.args[0])
    return PartOfLoader(at, text, frame_at(file, call.lineno), data, ast.unparse(call).replace(data, "data", 1))


def _is_part(value: ast.expr) -> bool:
    """A fraction, or what may be one."""
    return not isinstance(value, ast.Constant) or isinstance(value.value, float)


def resumes_from(folder: str) -> tuple[Frame, str] | None:
    """(line, checkpoint) of the one call that lets a Trainer go on from what each rank finds for itself."""
    found = [
        (path, k)
        for path, n in program_nodes(folder)
        if isinstance(n, ast.Call) and last_name(n.func) == "train"
        for k in n.keywords
        if k.arg == "resume_from_checkpoint" and isinstance(k.value, ast.Name)
    ]
    if len(found) != 1:
        return None
    path, given = found[0]
    at = frame_at(path, given.value.lineno)
    is_own = may_differ(path, given.value, scopes_at(path, at.line), is_test=False) > SAME
    return (at, ast.unparse(given.value)) if is_own else None


_ASKS_FILES = ("exists", "is_file", "isfile", "glob", "iglob", "rglob", "listdir", "iterdir", "scandir")
_WRITES_FILES = ("save", "dump", "write_text", "write_bytes", "replace", "rename", "savez", "to_csv")
_MEETS = ("barrier", "wait_for_everyone", "broadcast_object_list", "all_gather_object", "all_reduce", "broadcast")


def looks_unmet(way: Sequence[Frame]) -> tuple[Frame, str] | None:
    """The one line before a way whose function goes by the files that are there, behind one that writes some, where no call lets the ranks meet in between."""
    bodies = {f.name: f for path in files_of_script(way[0].file) for f in functions_in(tree_of(path))} if way else {}
    found = []
    for frame in way:
        calls = [c for c in inside(function_at(frame.file, frame.line), ast.Call) if c.lineno < frame.line]
        writes = [c.lineno for c in calls if _calls_any(bodies.get(last_name(c.func)), _WRITES_FILES)]
        meets = [c.lineno for c in calls if last_name(c.func) in _MEETS]
        for call in calls:
            body = bodies.get(last_name(call.func))
            last = max((n for n in writes if n < call.lineno), default=0)
            is_met = any(last < n < call.lineno for n in meets) or _calls_any(body, _MEETS)
            if last and not is_met and _calls_any(body, _ASKS_FILES):
                found.append((frame_at(frame.file, call.lineno), ast.unparse(call)))
    return found[0] if len(found) == 1 else None


def _calls_any(body: ast.AST | None, names: Sequence[str]) -> bool:
    return any(last_name(c.func) in names for c in inside(body, ast.Call))
