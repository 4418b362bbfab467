"""Who left a loop that a framework runs in one call of the user, `trainer.fit(...)`, while others began another round of it.

The user's own lines do not show such a loop, and nothing in the framework is wrong. What ended it early is the data, or a line
of the user that asks the framework to stop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.calls.align import calls_at
from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.program.rank_names import kind_of_name
from unhang.analyze.program.rounds import is_in, ran_out
from unhang.analyze.program.source import frame_at, nearest, surroundings
from unhang.analyze.program.trees import (
    files_of_script,
    functions_in,
    inside,
    is_local_namesake,
    last_name,
    line_text,
    program_files,
    program_nodes,
    remembered,
    script_nodes,
    tree_of,
)
from unhang.analyze.situation import Situation
from unhang.model import CollectiveCall, Frame

_STOPS = ("should_stop", "should_training_stop", "should_epoch_stop", "stop_training")
_BEFORE_A_BATCH = "on_train_batch_start"  # Lightning ends the epoch where it gives -1
# What a line of the user asks of Lightning or the Trainer -> functions of theirs through which only those go that do it, or do not.
ASKS = {
    **dict.fromkeys(
        (*_STOPS, _BEFORE_A_BATCH),
        frozenset(("on_advance_end", "on_run_end", "on_epoch_end", "training_step", "optimizer_step")),
    ),
    "should_evaluate": frozenset(("evaluate", "_evaluate", "evaluation_loop", "prediction_step")),
    "should_save": frozenset(("_save_checkpoint", "save_model", "_save")),
    "should_log": frozenset(("_nested_gather", "nested_gather", "log")),
}
_AGREES = re.compile(r"reduce|broadcast|gather")
_OF_A_STEP = (
    "backward", "training_step", "validation_step", "test_step", "predict_step", "prediction_step", "optimizer_step",
)  # fmt: skip
_LOADERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")
# What the Trainer calls before the rounds of a step, and not for each batch: the others may have left it out, and are in the same step.
_LEFT_OUT_BY_SOME = ("_get_num_items_in_batch",)
_MOST_PAIRED = 8


@dataclass(frozen=True)
class LeftFramework:
    """`line`: the user's line that called the framework; `loop`: the frame of the framework that is in its loop. `stop`: a line that asks it to stop.

    `has_data`: the loaders of those who left are known to have more. `batches`: how many those who left, and the others, have in this round
    of the data; then they are not out of the loop, but in the evaluation at its end.
    """

    leavers: tuple[int, ...]
    stayers: tuple[int, ...]
    line: Frame
    loop: Frame
    stop: Frame | None
    has_data: bool = False
    batches: tuple[int, int] | None = None

    @property
    def call(self) -> str:
        """What the user's line calls: `trainer.fit`."""
        return line_text(self.line.file, self.line.line).partition("(")[0].split("=")[-1].strip() or self.line.function


def left_framework(s: Situation) -> LeftFramework | None:
    """Where the first difference is that some ranks left such a loop; both sides were in it at their previous call.

    A loop that does no steps, of ranks whose loaders are known to go on, goes over something else: that is a difference like any other.
    """
    d = s.divergence
    if d is None or d.left_loop is not None or d.by_condition is not None:
        return None
    found = _gone(s, d, d.reference_call, d.odd_call, d.odd) or _gone(s, d, d.odd_call, d.reference_call, d.reference)
    if found is None:
        return _through(s, d, d.reference_call, d.odd_call) or _through(s, d, d.odd_call, d.reference_call)
    if found.stop is not None:
        return found
    first = d.odd_call if found.leavers == d.odd else d.reference_call
    is_over = ran_out(s.case, found.leavers, found.stayers, first.created_ns, found.line, is_framework=True)
    if is_over is not False:
        return found
    if "/transformers/" in found.loop.file and _counts_its_own_data(str(Path(found.line.file).parent)):
        return found  # the Trainer counts its steps by the length of the loader, and asks for no batch more
    stayed = d.reference_call if found.leavers == d.odd else d.odd_call
    frames = stayed.frames or ()
    is_of_steps = any(f.function in _OF_A_STEP for f in frames[: frames.index(found.loop)])
    return replace(found, has_data=True) if is_of_steps else None


def _gone(
    s: Situation, d: Divergence, stayed: CollectiveCall, left: CollectiveCall, leavers: tuple[int, ...]
) -> LeftFramework | None:
    if any(f.function in _LEFT_OUT_BY_SOME for f in left.frames or ()):
        return None
    before = _last_together(s, stayed, left)
    stay, gone, last = (tuple(reversed(c.frames or ())) if c else () for c in (stayed, left, before))
    found = _outermost(stay, gone, last)
    if found is None:
        return None
    line, frame = found
    stayers = d.reference if leavers == d.odd else d.odd
    return LeftFramework(leavers, stayers, line, frame, _asks_to_stop(str(Path(line.file).parent)))


def _through(s: Situation, d: Divergence, stayed: CollectiveCall, left: CollectiveCall) -> LeftFramework | None:
    """Where one rank is through with the batches of its loader, and evaluates within the round of the framework's loop of which the others begin another one."""
    stay, gone = (tuple(reversed(c.frames or ())) for c in (stayed, left))
    depth = next((i for i, (a, b) in enumerate(zip(stay, gone, strict=False)) if a != b), 0)
    user = next((f for f in reversed(stay[:depth]) if f.is_user), None)
    if user is None or stay[depth].is_user or not _EVALUATES & {f.function for f in gone[depth:]}:
        return None
    here, there = stay[depth], gone[depth]
    is_one_loop = (here.file, here.function) == (there.file, there.function) and here.line < there.line
    shared = set(surroundings(here.file, here.line).loops) & set(surroundings(there.file, there.line).loops)
    batches = _batches_apart(s, left.rank, stayed.rank, user) if is_one_loop and shared else None
    leavers, stayers = (d.odd, d.reference) if left.rank in d.odd else (d.reference, d.odd)
    return LeftFramework(leavers, stayers, user, here, None, batches=batches) if batches else None


class MadeLoader(NamedTuple):
    """A loader that the program makes for the framework at `at`, over `data`."""

    at: Frame
    data: str


@remembered
def train_loader(script: str) -> MadeLoader | None:
    """The one loader that the program's `train_dataloader()` makes, which a framework may ask for anew in each epoch; of several, the one of what is made for it there."""
    made = [
        MadeLoader(frame_at(file, call.lineno), ast.unparse(call.args[0]))
        for file in files_of_script(script)
        for function in functions_in(tree_of(file))
        for call in (inside(function, ast.Call) if function.name == "train_dataloader" else ())
        if last_name(call.func).endswith("DataLoader") and call.args
    ]
    anew = made if len(made) == 1 else [m for m in made if "(" in m.data]
    return anew[0] if len(anew) == 1 else None


_LOADERS_OF = {
    "evaluation_loop": ("get_eval_dataloader", "get_test_dataloader"),
    "_inner_training_loop": ("get_train_dataloader",),
}


@remembered
def own_loader(script: str, loop: str) -> Frame | None:
    """Where a Trainer of the program makes the loader for a loop of transformers itself, and does not let the Trainer deal it out.

    The line that deals out by the rank, where there is one; else that which gives the loader.
    """
    for file in files_of_script(script):
        for function in functions_in(tree_of(file)):
            calls = {last_name(c.func) for c in inside(function, ast.Call)}
            if (
                function.name not in _LOADERS_OF.get(loop, ())
                or "DataLoader" not in calls
                or calls & {"prepare", "super"}
            ):
                continue
            by_rank = [s.lineno for s in function.body if any(kind_of_name(last_name(n)) for n in inside(s, ast.expr))]
            given = [
                s.lineno for s in function.body if "DataLoader" in {last_name(c.func) for c in inside(s, ast.Call)}
            ]
            return frame_at(file, (by_rank or given or [function.lineno])[0])
    return None


_EVALUATES = frozenset(("setup_data", "on_advance_end", "evaluate", "_evaluate", "evaluation_loop"))


def _batches_apart(s: Situation, rank: int, other: int, line: Frame) -> tuple[int, int] | None:
    """How many batches the newest loader of each rank there has that goes over its items by a sampler of its own; None where that is as many, or not known."""
    newest: list[dict[str, int]] = []
    for r in (rank, other):
        facts = s.case.ranks[r].facts if r in s.case.ranks else ()
        of_line = [f for f in facts if f.kind == "program.loader" and f.at is not None and f.at.line == line.line]
        newest.append({f"{f['batch_size']} {f['sampler']}": int(f["batches"]) for f in of_line if f["batches"]})
    mine, theirs = newest
    apart = [(mine[k], theirs[k]) for k in mine.keys() & theirs.keys() if mine[k] < theirs[k]]
    return apart[0] if len(apart) == 1 else None


def _last_together(s: Situation, stayed: CollectiveCall, left: CollectiveCall) -> CollectiveCall | None:
    """The last call that the one who left made at the same line as the other. In between, calls of the same kind and size may have paired by chance."""
    table, group = s.case.calls, s.case.calls.groups.index(left.group)
    earlier = map(table.call, reversed(range(table.rank_rows(left.rank).start, left.row)))
    recent = [*islice((c for c in earlier if c.group == left.group), _MOST_PAIRED)]
    peers = (calls_at(s.index, group, c.seq).get(stayed.rank) for c in recent)
    together = (c for c, peer in zip(recent, peers, strict=True) if peer is not None and peer.frames == c.frames)
    return next(together, next(iter(recent), None))


def _outermost(stay: tuple[Frame, ...], gone: tuple[Frame, ...], last: tuple[Frame, ...]) -> tuple[Frame, Frame] | None:
    """The user's line, and the outermost of the framework's loops below it that one rank is in and the other has left."""
    for depth, frame in enumerate(stay):
        above = stay[depth - 1] if depth else frame
        if frame.is_user or not any(f.is_user for f in stay[:depth]) or "/torch/" in frame.file:
            continue
        user = above if above.is_user else next(f for f in reversed(stay[:depth]) if f.is_user)
        for loop in surroundings(frame.file, frame.line).loops:
            if is_in(last, stay, depth, loop) and not is_in(gone, stay, depth, loop):
                return user, frame
    return None


def below(path: tuple[Frame, ...], line: Frame) -> Frame:
    """The user's line that a framework runs below another one, on the way of those who are still there; that line itself where there is none."""
    behind = path[path.index(line) + 1 :] if line in path else ()
    return behind[0] if behind else line


def asks_to_end(frames: Sequence[Frame]) -> Frame | None:
    """The one line of the user that asks a framework to stop, where it is the framework that made a call; `frames` are innermost first."""
    made = next((f for f in frames if "/torch/" not in f.file), None)
    user = next((f for f in frames if f.is_user), None)
    return None if made is None or user is None or made.is_user else _asks_to_stop(str(Path(user.file).parent))


def asked_for(d: Divergence) -> Frame | None:
    """The one line of the user's files that asks a framework for what one side alone does there: an evaluation, the end of an epoch.

    Else the one that answers the framework when it asks whether to do it.
    """
    line, ways = _parted_in_framework(d)
    if line is None:
        return None
    one, other = ({f.function for f in frames[: frames.index(line)]} for frames in ways)
    found = {f for attribute, f in _asks_in(str(Path(line.file).parent)) if ASKS[attribute] & (one ^ other)}
    under = {(f.file, f.function, nearest(f.file, f.line, ast.If)) for f in found}
    return min(found, key=lambda f: f.line) if len(under) == 1 else None if found else _answer(d, line)


def _parted_in_framework(d: Divergence) -> tuple[Frame | None, list[tuple[Frame, ...]]]:
    """The innermost line of the user that both calls passed, where a framework that it called went two ways; and the frames of both."""
    ways = [call.frames or () for call in (d.odd_call, d.reference_call)]
    if d.in_library is not None:
        return d.location, ways
    shared = list(takewhile(lambda pair: pair[0] == pair[1], zip(*map(reversed, ways), strict=False)))
    if not shared or any(len(frames) == len(shared) for frames in ways):
        return None, ways
    line = next((one for one, _ in reversed(shared) if one.is_user), None)
    is_called = line is not None and not any(frames[frames.index(line) - 1].is_user for frames in ways)
    return (line if is_called else None), ways


def _answer(d: Divergence, line: Frame) -> Frame | None:
    """The one `return` of the user's method that the framework asks whether to make the call that the odd ranks left out."""
    if not d.skipped or d.in_library is None:
        return None
    inner = d.in_library[1]
    tests = (c.test for c in surroundings(inner.file, inner.line).conditions)
    calls = (c for test in tests for c in inside(test, ast.Call))
    asked = {c.func.attr for c in calls if isinstance(c.func, ast.Attribute)}
    answers = [f for f in inside(tree_of(line.file), ast.FunctionDef) if f.name in asked]
    given = [n for f in answers for n in inside(f, ast.Return)]
    if len(answers) != 1 or len(given) != 1 or given[0].value is None or any(map(_agrees, ast.walk(answers[0]))):
        return None
    return Frame(line.file, given[0].lineno, answers[0].name)


def stops_by_metrics(script: str) -> bool:
    """Whether a program has a callback of its own or of the library that ends a training by what was evaluated."""
    return _names_any((n for _, n in script_nodes(script)), "EarlyStopping", "early_stopping")


def _names_any(nodes: Iterable[ast.AST], *parts: str) -> bool:
    """Whether something is imported or named with one of these in its name."""
    names = (n.name if isinstance(n, ast.alias) else n.id for n in nodes if isinstance(n, ast.alias | ast.Name))
    return any(part in name for name in names for part in parts)


@remembered
def _counts_its_own_data(folder: str) -> bool:
    """Whether the program gives the Trainer loaders of its own making, and nothing stops it early."""
    nodes = [n for _, n in program_nodes(folder)]
    makes = any(isinstance(n, ast.FunctionDef) and n.name in _LOADERS for n in nodes)
    return makes and not _names_any(nodes, "EarlyStopping")


@remembered
def _asks_to_stop(folder: str) -> Frame | None:
    """The one line of the user's files that asks a framework to stop; None where there are several, or none."""
    found = [frame for attribute, frame in _asks_in(folder) if attribute in (*_STOPS, _BEFORE_A_BATCH)]
    return found[0] if len(found) == 1 else None


@remembered
def _asks_in(folder: str) -> tuple[tuple[str, Frame], ...]:
    """(attribute, line) of all lines that ask a framework for something, but for those in functions that agree on it with other ranks. A barrier agrees on nothing."""
    found = []
    for path in program_files(folder):
        for function in inside(tree_of(path), ast.FunctionDef):
            if not any(map(_agrees, ast.walk(function))):
                lines = {(a, n.lineno) for n in inside(function, ast.stmt) for a in _asked_by(function.name, n)}
                found += [(a, Frame(path, n, function.name)) for a, n in sorted(lines)]
    return tuple(found)


def _asked_by(function: str, node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Assign(targets=targets, value=value) if not (isinstance(value, ast.Constant) and not value.value):
            yield from (t.attr for t in targets if isinstance(t, ast.Attribute) and t.attr in ASKS)
        case ast.Return(value=ast.expr() as value) if function == _BEFORE_A_BATCH:
            if any(ast.unparse(n) == "-1" for n in ast.walk(value)):
                yield _BEFORE_A_BATCH


def _agrees(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(_AGREES.search(last_name(node.func))) and not is_local_namesake(node)
