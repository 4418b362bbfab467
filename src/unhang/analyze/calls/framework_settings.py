"""What the program leaves to some ranks where a framework makes the calls, and what it may set so that all make the same: DDP, Lightning, Trainer, torchmetrics."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path as Folder
from typing import NamedTuple

from unhang.analyze.calls.align import calls_at
from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.framework_loops import LeftFramework
from unhang.analyze.program.may_differ import OWN, SAME, may_differ
from unhang.analyze.program.source import calls_only_on_rank_zero, frame_at, nearest, scopes_at, surroundings
from unhang.analyze.program.trees import (
    Function,
    covers,
    functions_in,
    importers_beside,
    inside,
    last_name,
    names_in,
    program_files,
    remembered,
    tree_of,
)
from unhang.analyze.situation import Situation
from unhang.model import CollectiveCall, Frame, user_frames

LIGHTNING = ("/lightning/pytorch/", "/pytorch_lightning/")
_LIMITS = (
    ("/training_epoch_loop.py", "limit_train_batches"),
    ("/fit_loop.py", "limit_train_batches"),
    ("/evaluation_loop.py", "limit_val_batches"),
    ("/prediction_loop.py", "limit_predict_batches"),
)
_STEPS = ("training_step", "_inner_training_loop", "training_epoch_loop.py")
_MOST_CALLS = 20_000


class Limit(NamedTuple):
    """The setting that bounds the batches of a framework's loop. `at`: the line that makes the Trainer; `batches`: of those who had fewest."""

    name: str
    at: Frame
    batches: int


def limit_of(s: Situation, d: Divergence, gone: LeftFramework) -> Limit | None:
    """Of a loop of Lightning that ranks left: the setting, where the number of batches that they made is known."""
    is_lightning = any(part in gone.loop.file for part in LIGHTNING)
    name = next((n for end, n in _LIMITS if gone.loop.file.endswith(end) and is_lightning), "")
    if name == "limit_val_batches" and gone.call.endswith(".test"):
        name = "limit_test_batches"
    at, batches = _made_at(gone.line.file), _rounds(s, d, gone)
    return Limit(name, at, batches) if name and at is not None and batches else None


def _made_at(path: str) -> Frame | None:
    """The one line of a file that makes a Trainer."""
    calls = [c for c in inside(tree_of(path), ast.Call) if last_name(c.func) == "Trainer"]
    return frame_at(path, calls[0].lineno) if len(calls) == 1 else None


def _rounds(s: Situation, d: Divergence, gone: LeftFramework) -> int:
    """How many rounds of the loop the leavers made at its last visit: as often as each of the calls of a round; 0 where these tell different numbers."""
    last: CollectiveCall = d.odd_call if gone.leavers == d.odd else d.reference_call
    table, counts = s.case.calls, Counter[int]()
    first = s.case.calls.rank_rows(last.rank).start
    for row in range(last.row - 1, max(first, last.row - _MOST_CALLS) - 1, -1):
        index = int(table["frames"][row])
        frames = table.stacks[index] if index >= 0 else ()
        if gone.loop not in frames:
            break
        counts[index] += 1
    made = set(counts.values())
    return made.pop() if len(made) == 1 else 0


def trains_below(d: Divergence) -> Frame | None:
    """The line at which the other ranks still train in a framework, where the odd ones have gone on behind it."""
    fork, frames = d.fork, d.reference_call.frames or ()
    if fork is None or fork.same_line or fork.right.line <= fork.left.line or fork.left not in frames:
        return None
    below = frames[: frames.index(fork.left)]
    is_in_steps = any(f.function in _STEPS or f.file.endswith(_STEPS) for f in below if not f.is_user)
    return fork.left if is_in_steps and not user_frames(below) else None


def given_data(path: str, name: str) -> tuple[int, str]:
    """(line, what is given) of the one `train_dataset=`, or another `name`, by which a file makes a Trainer; (0, "") where there is none."""
    calls = [c for c in inside(tree_of(path), ast.Call) if last_name(c.func).endswith("Trainer")]
    given = [k.value for c in calls for k in c.keywords if k.arg == name]
    return (given[0].lineno, ast.unparse(given[0])) if len(given) == 1 else (0, "")


def is_iterable(path: str, given: str) -> bool:
    """Whether data that a file gives to a Trainer comes from a class of the program without a length."""
    made = [n.value for n in inside(tree_of(path), ast.Assign) if given in map(ast.unparse, n.targets)]
    names = {last_name(n) for value in (ast.parse(given), *made) for n in inside(value, ast.Name)}
    classes = (c for file in program_files(str(Folder(path).parent)) for c in inside(tree_of(file), ast.ClassDef))
    return any(c.name in names and "IterableDataset" in map(last_name, c.bases) for c in classes)


_BATCH_SIZES = ("per_device_train_batch_size", "batch_size")


class SizedApart(NamedTuple):
    """The size of a batch that each rank finds for itself: `name` is set to `text` at `at`."""

    at: Frame
    name: str
    text: str


@remembered
def sized_apart(path: str) -> SizedApart | None:
    """The one such size that a file gives a Trainer or a loader."""
    given = [k.value for c in inside(tree_of(path), ast.Call) for k in c.keywords if k.arg in _BATCH_SIZES]
    names = {v.id: v for v in given if isinstance(v, ast.Name)}
    own = [v for v in names.values() if may_differ(path, v, scopes_at(path, v.lineno), is_test=False) == OWN]
    sets = [n for v in own for n in inside(tree_of(path), ast.Assign) if [v.id] == [*map(ast.unparse, n.targets)]]
    if len(own) != 1 or len(sets) != 1:
        return None
    return SizedApart(frame_at(path, sets[0].lineno), own[0].id, ast.unparse(sets[0].value))


def computed_metrics(path: str) -> tuple[int, str]:
    """The same of the one `compute_metrics=`."""
    return given_data(path, "compute_metrics")


def property_read(path: str, line: int, function: str) -> str:
    """The text by which a line reads a property that a library computes in a function of that name: `trainer.log_dir`; empty where it calls it."""
    statement = nearest(path, line, ast.stmt)
    called = {id(c.func) for c in inside(statement, ast.Call)}
    read = {ast.unparse(n) for n in inside(statement, ast.Attribute) if n.attr == function and id(n) not in called}
    return read.pop() if len(read) == 1 else ""


_MOST_BUFFERS = 64
_DDP, _FORWARD = "nn/parallel/distributed.py", ("_pre_forward", "_sync_buffers", "forward")


def has_one_more_buffer(s: Situation, d: Divergence) -> bool:
    """Whether the odd ranks broadcast more buffers in one forward than the others, who went on behind it.

    Both began the forward at the same call. Each buffer is broadcast once: two alike are two forwards.
    """
    if not d.is_decided or not _syncs_buffers(d.odd_call) or _syncs_buffers(d.reference_call):
        return False
    group = s.case.calls.groups.index(d.group)
    mine, theirs = (_run(s, group, ranks[0], d.seq) for ranks in (d.odd, d.reference))
    kinds = [(c.in_sizes, c.dtype) for c in (*mine, d.odd_call)]
    return bool(theirs) and len(mine) == len(theirs) and len(set(map(str, kinds))) == len(kinds)


def _run(s: Situation, group: int, rank: int, seq: int) -> list[CollectiveCall]:
    """The broadcasts of buffers right before the call at which the ranks part, from the line of the odd ranks' forward."""
    found: list[CollectiveCall] = []
    for at in range(seq - 1, max(0, seq - _MOST_BUFFERS), -1):
        call = calls_at(s.index, group, at).get(rank)
        if call is None or not _syncs_buffers(call):
            break
        found.append(call)
    return found


def _syncs_buffers(call: CollectiveCall) -> bool:
    return any(f.function == "_sync_buffers" and f.file.endswith(_DDP) for f in call.frames or ())


def hidden_forward(d: Divergence) -> Frame | None:
    """The forward through a DDP wrapper on rank 0 alone that explains an extra broadcast of buffers, if there is just one.

    Such a forward issues no collective itself in evaluation; it makes the next forward on that rank broadcast the buffers.
    """
    frames = d.odd_call.frames or ()
    in_forward = any(f.file.endswith(_DDP) and f.function in _FORWARD for f in frames)
    around_odd = [surroundings(f.file, f.line) for f in d.odd_path]
    theirs = {test for f in d.reference_path for test in surroundings(f.file, f.line).tests}
    if not in_forward or d.odd != (0,) or any(a.depends_on_rank and not set(a.tests) <= theirs for a in around_odd):
        return None  # that it went elsewhere by its rank explains more than a forward that nobody saw
    found = {f for frame in d.odd_path for f in calls_only_on_rank_zero(frame.file, frame.line)}
    return found.pop() if len(found) == 1 else None


_MAKES = ("empty", "zeros", "empty_like", "zeros_like", "new_empty", "new_zeros")


class MadeAnew(NamedTuple):
    """`if test: return made` at `line` of `path`, in `function`, whose other `return` gives what it has computed."""

    path: str
    line: int
    function: str
    test: str
    made: str


@remembered
def made_anew(path: str) -> MadeAnew | None:
    """The one such place for a tensor without rows, in a file and those that import something of it; None where there are several."""
    found = [one for file in (path, *importers_beside(path)) for one in _in_file(file)]
    return found[0] if len(found) == 1 else None


def _in_file(path: str) -> Iterator[MadeAnew]:
    for function in inside(tree_of(path), ast.FunctionDef):
        given = [n.value for n in inside(function, ast.Return) if n.value is not None]
        if function.name == "backward" or all(map(_is_made, given)):
            continue
        for node in ast.walk(function):
            match node:
                case ast.If(test=test, body=[*_, ast.Return(value=ast.expr() as value)]) if not node.orelse:
                    if _asks_for_none(test) and _is_made(value):
                        yield MadeAnew(path, node.lineno, function.name, ast.unparse(test), ast.unparse(value))


def _is_made(value: ast.expr) -> bool:
    is_made = isinstance(value, ast.Call) and last_name(value.func) in _MAKES
    return is_made and not any(k.arg == "requires_grad" for k in getattr(value, "keywords", ()))


def _asks_for_none(test: ast.expr) -> bool:
    """Whether a test asks for a tensor without rows: `x.shape[0] == 0`, `len(x) == 0`, `not x.numel()`."""
    match test:
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.Compare(ops=[ast.Lt()], comparators=[ast.Constant(value=1)]):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() | ast.Subscript()):
            return True
    return False


class SkippedPart(NamedTuple):
    """The layers or parameters `parts` of a module (`self.head`), which take part only if `test`, at line `at`.

    `value`: what the branch changes with them, if a name; `zero`: what adds nothing, and lets them take part.
    """

    at: Frame
    parts: tuple[str, ...]
    test: str
    value: str
    zero: str


@remembered
def skipped_part(folder: str, names: tuple[str, ...] = ()) -> SkippedPart | None:
    """The one branch of the program's forwards that runs layers in some steps alone; of layers or parameters with one of these names, where names are given.

    A branch by a setting (`self.training`, an attribute), or with an `else` that runs layers as well, is none.
    """
    of = (_branches, _of_parameters) if names else (_branches,)
    found = [x for path in program_files(folder) if folder for branches in of for x in branches(path, set(names))]
    return found[0] if len(found) == 1 else None


def _branches(path: str, names: set[str]) -> Iterator[SkippedPart]:
    for module in inside(tree_of(path), ast.ClassDef):
        methods = {f.name: f for f in module.body if isinstance(f, ast.FunctionDef)}
        init = methods.pop("__init__", None) if "forward" in methods else None
        made = set(map(ast.unparse, _layers(init))) - set(map(ast.unparse, _layers(init, ("Parameter",))))
        wanted = {m for m in made if not names or m.removeprefix("self.") in names}
        for node in (n for f in methods.values() for n in inside(f, ast.If)):
            parts = tuple(dict.fromkeys(_called(node.body)))
            if not wanted.isdisjoint(parts) and made.isdisjoint(_called(node.orelse)) and _asks_the_data(node.test):
                own = tuple(x for x in parts if x in made)
                zero = f"0.0 * sum(p.sum() for m in ({', '.join(own)},) for p in m.parameters())"
                yield SkippedPart(frame_at(path, node.lineno), own, ast.unparse(node.test), _changed(node.body), zero)


def _of_parameters(path: str, names: set[str]) -> Iterator[SkippedPart]:
    """The branches that use a module's own parameters, of these names, which nothing else in the module uses."""
    for module in inside(tree_of(path), ast.ClassDef):
        methods = {f.name: f for f in module.body if isinstance(f, ast.FunctionDef)}
        made = {ast.unparse(t): t.attr for t in _layers(methods.pop("__init__", None), ("Parameter",))}
        for part in (m for m, name in made.items() if name in names):
            uses = [n.lineno for f in methods.values() for n in inside(f, ast.Attribute) if ast.unparse(n) == part]
            nodes = [n for f in methods.values() for n in inside(f, ast.If) if _asks_the_data(n.test)]
            around = [n for n in nodes if uses and all(_is_in(n.body, line) for line in uses)]
            if around:
                inner = max(around, key=lambda n: n.lineno)
                test, value = ast.unparse(inner.test), _changed(inner.body)
                yield SkippedPart(frame_at(path, inner.lineno), (part,), test, value, f"0.0 * {part}.sum()")


def _is_in(body: Sequence[ast.stmt], line: int) -> bool:
    return any(covers(statement, line) for statement in body)


def _layers(init: ast.FunctionDef | None, classes: Sequence[str] = ()) -> list[ast.Attribute]:
    """The attributes that are set to something that is made there; of one of these classes, where such are given."""
    made = (n for n in inside(init, ast.Assign) if isinstance(n.value, ast.Call))
    of = (n for n in made if not classes or (isinstance(n.value, ast.Call) and last_name(n.value.func) in classes))
    return [t for n in of for t in n.targets if isinstance(t, ast.Attribute)]


def _called(body: Iterable[ast.stmt]) -> Iterator[str]:
    """What is called there, and what is given to a function such as `checkpoint`."""
    for call in (c for statement in body for c in inside(statement, ast.Call)):
        yield from map(ast.unparse, (call.func, *call.args))


def _asks_the_data(test: ast.expr) -> bool:
    """Whether a test asks for anything but attributes of the object and constants; `is None` asks for what the caller gave."""
    is_given = isinstance(test, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)
    return not is_given and not names_in(test) <= {"self"}


def _changed(body: Sequence[ast.stmt]) -> str:
    """The name that the last statement of a branch sets."""
    match body[-1]:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
            return name
    return ""


_AS_THEY_COME = ("as_completed", "imap_unordered")


def sets_as_they_come(d: Divergence, path: str) -> tuple[Frame, str] | None:
    """(line, what it returns) of the function that gives a Trainer a dict of data sets to evaluate, in the order in which threads or processes have made them."""
    loops = [
        [f for f in c.frames or () if f.function == "evaluate" and "/transformers/" in f.file]
        for c in (d.odd_call, d.reference_call)
    ]
    line, given = given_data(path, "eval_dataset")
    if not line or min(map(len, loops)) < 2:
        return None
    made = {last_name(c.func) for c in inside(ast.parse(given), ast.Call)} | {
        last_name(n) for n in inside(ast.parse(given), ast.Name)
    }
    found = [
        (frame_at(at, gives.lineno), ast.unparse(gives.value))
        for at in program_files(str(Folder(path).parent))
        for function in functions_in(tree_of(at))
        if function.name in made
        for gives in inside(function, ast.Return)
        if gives.value is not None and _comes_unordered(function, gives.value)
    ]
    return found[0] if len(found) == 1 else None


def _comes_unordered(function: Function, value: ast.expr) -> bool:
    """Whether it is a dict that is filled as something comes."""
    over = [g.iter for g in value.generators] if isinstance(value, ast.DictComp) else []
    for loop in inside(function, ast.For) if isinstance(value, ast.Name) else ():
        fills = [t.value for n in inside(loop, ast.Assign) for t in n.targets if isinstance(t, ast.Subscript)]
        over += [loop.iter] if any(ast.unparse(f) == ast.unparse(value) for f in fills) else []
    return any(isinstance(e, ast.Call) and last_name(e.func) in _AS_THEY_COME for e in over)


class AskedAhead(NamedTuple):
    """A loader asks its sampler ahead, and that makes a call with others at `asks`. `made`: where the loader has `workers` of each rank's own; `even`: as many on all."""

    asks: Frame
    made: Frame
    workers: str
    even: str


def asked_ahead(frames: Sequence[Frame]) -> AskedAhead | None:
    """Of the stack of a rank in such a call, innermost frame first, where the program has one such loader."""
    ahead = [
        i for i, f in enumerate(frames) if f.file.endswith("/utils/data/dataloader.py") and f.function == "_next_index"
    ]
    asks = frames[ahead[0] - 1] if ahead and ahead[0] else None
    if asks is None or not asks.is_user:
        return None
    loaders = [
        (path, call, k.value)
        for path in program_files(str(Folder(asks.file).parent))
        for call in inside(tree_of(path), ast.Call)
        if last_name(call.func) == "DataLoader"
        for k in call.keywords
        if k.arg == "num_workers" and not isinstance(k.value, ast.Constant)
    ]
    own = [x for x in loaders if may_differ(x[0], x[2], scopes_at(x[0], x[2].lineno), is_test=False) > SAME]
    if len(own) != 1:
        return None
    path, call, value = own[0]
    needs_one = any(
        k.arg in ("prefetch_factor", "persistent_workers", "multiprocessing_context") for k in call.keywords
    )
    return AskedAhead(asks, frame_at(path, value.lineno), ast.unparse(value), "1" if needs_one else "0")
