"""First fixes of what one item of the data raises: the item cannot be decoded, made or divided by; of a model that each rank sizes by its own data.

Also of a worker that is stuck in an item.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unhang.analyze.activity import imports_anew
from unhang.analyze.program.source import endless_loop, frame_at, function_at, loop_around, nearest, surroundings
from unhang.analyze.program.trees import calls_on, inside, last_name, line_text, nodes_of, program_nodes, read_source
from unhang.analyze.waits import host_waits, polling
from unhang.model import Case, Fix, Frame, RaisedError, user_frames
from unhang.read.stack_texts import ORIGINAL, last_traceback
from unhang.rules import wording as w
from unhang.rules.base import CLEAN, edit
from unhang.rules.start_repairs import built_of_all

# What an item raises that is not as the program takes it to be; a mistake of the program itself raises others as well.
_OF_AN_ITEM = frozenset(
    ("ValueError", "KeyError", "UnicodeDecodeError", "JSONDecodeError", "UnidentifiedImageError", "BadZipFile", "EOFError", "OSError",
     "ZeroDivisionError", "RuntimeError", "AssertionError", "LibsndfileError", "error")
)  # fmt: skip
_OF_PYTHON = (
    "ValueError",
    "KeyError",
    "UnicodeDecodeError",
    "EOFError",
    "OSError",
    "ZeroDivisionError",
    "RuntimeError",
    "AssertionError",
)
_OF_DEVICES = re.compile(r"out of memory|can't allocate|CUDA|NCCL|cuDNN|[Cc]onnection|shared memory|bus error")
_FEWEST_CALLS = 12  # with others, before the item: so items could be made, and this one could not
_FETCH = "/torch/utils/data/_utils/fetch.py"


def as_raised_first(error: RaisedError) -> RaisedError:
    """An exception as the worker of a loader raised it, where the loader raised it anew: its type, its message and its frames."""
    if ORIGINAL not in error.message:
        return error
    found = last_traceback(error.text.splitlines())
    if found is None or not found.frames:
        return error
    return replace(error, type=found.type, message=found.text, frames=tuple(reversed(found.frames)))


def of_item(error: RaisedError, case: Case) -> Fix | None:
    """What mends an exception that one item raises, in the program's own lines."""
    raised = as_raised_first(error)
    frames = user_frames(raised.frames)
    if not frames or _OF_DEVICES.search(error.message):
        return None
    if (shown := of_decoding(raised, frames[0]) or of_division(raised)) is not None:
        return shown
    kind = raised.type.rpartition(".")[2]
    ranks = [r for r, e in case.ranks.items() if error in (e.error, e.held, *e.handled)]
    made = [rows.stop - rows.start for r in ranks for rows in [case.calls.rank_rows(r)]]
    if kind not in _OF_AN_ITEM or min(made, default=0) < _FEWEST_CALLS:
        return None
    return _next_item(kind, frames) or _without_row(kind, raised.frames)


def of_decoding(error: RaisedError, frame: Frame) -> Fix | None:
    """For a text that is in another encoding than it is read with: the one call that opens it."""
    function = function_at(frame.file, frame.line)
    if error.type.rpartition(".")[2] != "UnicodeDecodeError" or function is None:
        return None
    opens = [c for c in inside(function, ast.Call) if last_name(c.func) in ("open", "read_text") and _is_text(c)]
    if len(opens) != 1:
        return None
    call = ast.unparse(opens[0])
    return edit(
        "Read a text in another encoding without an exception: what cannot be decoded becomes a mark",
        f"# {w.line_at(frame.file, opens[0].lineno)}, in place of `{call}`\n{call[:-1]}, errors='replace')\n"
        "# or with the encoding that this file has, where only it is another",
        verify=CLEAN,
    )


def _is_text(call: ast.Call) -> bool:
    given = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    names = {k.arg for k in call.keywords}
    is_binary = any(isinstance(v, str) and v in ("rb", "br", "r+b", "wb") for v in given)
    return not is_binary and "errors" not in names and None not in names and bool(call.args or names)


def of_division(error: RaisedError) -> Fix | None:
    """For a quotient of counts, of which the lower one may be zero: then it is zero."""
    if error.type != "ZeroDivisionError" or not error.frames or not error.frames[0].is_user:
        return None
    frame = error.frames[0]
    quotients = [n for n in nodes_of(frame.file) if isinstance(n, ast.BinOp) and _divides_at(n, frame.line)]
    whole = line_text(frame.file, frame.line)
    source = read_source(frame.file)
    text = ast.get_source_segment("".join(source[1]), quotients[0]) if source and len(quotients) == 1 else None
    if text is None:
        return None
    below = ast.unparse(quotients[0].right)
    safe = f"{text} if {below} else 0.0"
    if whole.count(text) == 1 and f"({text})" not in whole and not whole.endswith(f"= {text}"):
        safe = f"({safe})"
    return edit(
        f"Take `{text}` as 0.0 where `{below}` is zero: an item may have none",
        f"# {w.spot(frame)}, in place of `{whole}`\n{whole.replace(text, safe)}",
        verify=CLEAN,
    )


def _divides_at(node: ast.BinOp, line: int) -> bool:
    return isinstance(node.op, ast.Div) and node.lineno == line == node.end_lineno


def _next_item(kind: str, frames: Sequence[Frame]) -> Fix | None:
    """For an item of a data set that cannot be made: the next one takes its place, so that no rank has fewer batches."""
    made = next((f for f in frames if f.function.rpartition(".")[2] == "__getitem__"), None)
    function = function_at(made.file, made.line) if made is not None else None
    if made is None or function is None:
        return None
    methods, parameters = _methods_beside(made.file, function), [a.arg for a in function.args.args]
    if "__len__" not in methods or "make_item" in methods or len(parameters) != 2:
        return None
    index = parameters[1]
    return edit(
        f"Give the next item where one cannot be made: all ranks keep as many batches ({w.spot(frames[0])} raises {kind})",
        f"# {w.line_at(made.file, function.lineno)}: rename __getitem__ to make_item, and beside it\n"
        f"def __getitem__(self, {index}):\n"
        "    for further in range(len(self)):   # nearly always the first one\n"
        "        try:\n"
        f"            return self.make_item(({index} + further) % len(self))\n"
        f"        except {_handled(kind)} as error:\n"
        f'            print(f"item {{{index} + further}} is left out: {{error!r}}", flush=True)\n'
        '    raise ValueError("no item of this data set can be made")',
        verify=CLEAN,
    )


def _without_row(kind: str, frames: Sequence[Frame]) -> Fix | None:
    """For rows of which one cannot be put into the batch: another takes its place, so that no rank has fewer batches, or a smaller one to gather."""
    outer = next((i for i, f in enumerate(frames) if f.file.endswith(_FETCH)), 0)
    joins = frames[outer - 1] if outer else None
    function = function_at(joins.file, joins.line) if joins is not None and joins.is_user else None
    if joins is None or function is None or function.name != "__call__" or len(function.args.args) != 2:
        return None
    if "collate" in _methods_beside(joins.file, function):
        return None
    rows, handled = function.args.args[1].arg, _handled(kind)
    return edit(
        f"Put another row in place of one that cannot be in a batch: all ranks keep batches of one size ({w.spot(frames[0])} raises {kind})",
        f"# {w.line_at(joins.file, function.lineno)}: rename __call__ to collate, and beside it\n"
        f"def __call__(self, {rows}):\n"
        "    try:\n"
        f"        return self.collate({rows})\n"
        f"    except {handled} as error:\n"
        f'        print(f"another row stands in for one: {{error!r}}", flush=True)\n'
        f"    good = next(row for row in {rows} if self.can_take(row))\n"
        f"    return self.collate([row if self.can_take(row) else good for row in {rows}])\n"
        "def can_take(self, row):\n"
        "    try:\n"
        "        return bool(self.collate([row]))\n"
        f"    except {handled}:\n"
        "        return False",
        verify=CLEAN,
    )


def _methods_beside(path: str, function: ast.AST) -> set[str]:
    """The methods of the class that a function is one of."""
    owner = next((n for n in nodes_of(path) if isinstance(n, ast.ClassDef) and function in n.body), None)
    return {n.name for n in owner.body if isinstance(n, ast.FunctionDef)} if owner is not None else set()


def _handled(kind: str) -> str:
    return kind if kind in _OF_PYTHON else "Exception"


def on_another_rank(error: RaisedError) -> str:
    """The message with which the other ranks raise what one has handled: with the words by which its handler knows it, where that asks for any."""
    handler = error.handler
    asked = nearest(handler.file, handler.line, ast.ExceptHandler) if handler is not None else None
    texts = [
        n.left.value
        for test in inside(asked, ast.If)
        for n in inside(test.test, ast.Compare)
        if isinstance(n.ops[0], ast.In) and isinstance(n.left, ast.Constant) and isinstance(n.left.value, str)
    ]
    known = next((text for text in texts if text in error.message), "")
    return f"{known} on another rank".strip().replace('"', "'")


# A model that is not as large on every rank.


def of_own_size(error: RaisedError, frame: Frame | None) -> Fix | None:
    """For a model of which DDP finds another shape on a rank: what the program sizes it by, where that is a rank's own list or largest number."""
    if frame is None or "appears not to match sizes of the same param" not in error.message:
        return None
    folder = str(Path(frame.file).parent)
    found = {s: None for path, n in program_nodes(folder) if (s := _sizes(folder, path, n)) is not None}
    return next(iter(found)) if len(found) == 1 else None if found else built_of_all(folder)


def _sizes(folder: str, path: str, node: ast.AST) -> Fix | None:
    """The fix of a statement that holds what a rank's own data alone tell, and that sizes a module."""
    match node:
        case (
            ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name) as target], value=value)
            | ast.Assign(targets=[ast.Name(name) as target], value=value)
        ) if _is_sorted_set(value) and _counts_for_model(folder, name, is_list=True):
            return _union(path, node, ast.unparse(target), value)
        case ast.Return(value=ast.expr() as value) if _is_largest(value):
            function = function_at(path, node.lineno)
            if function is not None and _counts_for_model(folder, function.name, is_list=False):
                return _largest(path, node, value, f"return {ast.unparse(value)}", "return int(largest)")
        case ast.Assign(targets=[ast.Attribute(attr=name) | ast.Name(name) as target], value=value) if _is_largest(
            value
        ) and _counts_for_model(folder, name, is_list=False):
            return _largest(path, node, value, ast.unparse(node), f"{ast.unparse(target)} = int(largest)")
    return None


def _is_sorted_set(value: ast.expr) -> bool:
    """Whether it is a list of what there is: `sorted({t.kind for t in items})`, `sorted(set(...))`."""
    match value:
        case ast.Call(func=ast.Name("sorted" | "list"), args=[ast.SetComp()], keywords=[]):
            return True
        case ast.Call(func=ast.Name("sorted" | "list"), args=[ast.Call(func=ast.Name("set"))], keywords=[]):
            return True
    return False


def _is_largest(value: ast.expr) -> bool:
    """Whether it is one more than the largest: `int(x.max()) + 1`, `max(xs) + 1`."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=1)):
            return any(isinstance(n, ast.Call) and last_name(n.func) in ("max", "amax") for n in ast.walk(left))
    return False


def _counts_for_model(folder: str, name: str, is_list: bool) -> bool:
    """Whether the program gives a module, when it makes it, `x.name`, or the length of it if that is a list; and all ranks ask for it alike."""
    if any(last_name(n) == name and _is_for_some(path, n) for path, n in _names_in(folder)):
        return False
    modules = {
        n.name
        for _, n in program_nodes(folder)
        if isinstance(n, ast.ClassDef) and any(last_name(b).endswith("Module") for b in n.bases)
    }
    for _, call in program_nodes(folder):
        if not isinstance(call, ast.Call) or last_name(call.func) not in modules | {"Linear", "Embedding"}:
            continue
        for given in (*call.args, *(k.value for k in call.keywords)):
            of = given.args[0] if is_list and isinstance(given, ast.Call) and last_name(given.func) == "len" else given
            if (of is not given or not is_list) and isinstance(of, ast.Name | ast.Attribute) and last_name(of) == name:
                return True
    return False


def _names_in(folder: str) -> Iterator[tuple[str, ast.Name | ast.Attribute]]:
    return ((path, n) for path, n in program_nodes(folder) if isinstance(n, ast.Name | ast.Attribute))


def _is_for_some(path: str, node: ast.expr) -> bool:
    return any(c.depends_on_rank for c in surroundings(path, node.lineno).conditions)


def _union(path: str, node: ast.stmt, target: str, value: ast.expr) -> Fix:
    return edit(
        f"Make `{target}` of what all ranks have: each rank lists only what its own data hold, and sizes the model by it",
        f"# {w.spot(frame_at(path, node.lineno))}, in place of `{ast.unparse(node)}`, on every rank (import torch.distributed as dist)\n"
        f"everyone = [None] * dist.get_world_size()\ndist.all_gather_object(everyone, {ast.unparse(value)})\n"
        f"{target} = sorted(set().union(*everyone))   # the same list, in the same order, on every rank",
        verify=CLEAN,
    )


def _largest(path: str, node: ast.stmt, value: ast.expr, text: str, ends: str) -> Fix:
    return edit(
        f"Size the model by what all ranks have: `{ast.unparse(value)}` is that of this rank's own data",
        f"# {w.spot(frame_at(path, node.lineno))}, in place of `{text}`, on every rank (import torch and torch.distributed as dist)\n"
        f"largest = torch.tensor({ast.unparse(value)})\ndist.all_reduce(largest, op=dist.ReduceOp.MAX)\n{ends}",
        verify=CLEAN,
    )


_DRAWS = re.compile(r"/(?:random|numpy)[/.]|/torch/(?:_tensor|functional)\.py$")
# Nobody else of the worker's process is there to end such a wait.
_IS_TOLD = re.compile(r"\.(?:wait|acquire|recv)\(\)(?=\s*(?:#|$))")


def of_worker(
    place: Frame | None, otherwise: Frame | None, frames: Sequence[Frame] = ()
) -> tuple[str, Mapping[str, object]]:
    """The name of the fix for a loader's worker that stands at this line, and its words. `otherwise`: where the rank itself stands; `frames`: all of the worker's."""
    if place is not None and imports_anew(frames):
        return "guard main", {"told_at": w.spot(place)}
    if place is not None and any("/torch/distributed/" in f.file for f in frames):
        return "not in workers", {"told_at": w.spot(place)}
    if inherited := fresh_lock(place):
        return "fresh lock", inherited
    if searched := _search_of_item(frames):
        return ("usable items" if searched["draws_item"] else "next item"), searched
    if bound := bound_item(place or otherwise):
        return "bound the item", bound
    text = line_text(place.file, place.line) if place is not None else ""
    if place is not None and _IS_TOLD.search(text):
        return "not told", {"told_at": w.spot(place), "waits": text}
    if place is not None and (waits := polling.polled_for(place.file, place.line)):
        return "polls", {"told_at": w.spot(place), "waits": waits}
    line = host_waits.unread_errors(place.file) if place and "stdout" in text else 0
    return ("no pipe for errors", {"starts": w.line_at(place.file, line)}) if place and line else ("no fork", {})


def end_mark(place: Frame | None) -> Mapping[str, object]:
    """The words of the fix for a worker that waits for the next item of a queue which all workers share, where each ends at a mark that it takes out."""
    function = function_at(place.file, place.line) if place is not None else None
    for got in (n for n in inside(function, ast.Assign) if place is not None and n.lineno == place.line):
        queue = got.value.func if isinstance(got.value, ast.Call) else None
        wanted = f"{ast.unparse(got.targets[0])} is None"
        ends = [n for n in inside(function, ast.If) if ast.unparse(n.test) == wanted]
        ends = [n for n in ends if isinstance(n.body[0], ast.Return | ast.Break)]
        if isinstance(queue, ast.Attribute) and queue.attr == "get" and len(ends) == 1 and place is not None:
            at = w.line_at(place.file, ends[0].body[0].lineno)
            return {"mark_at": at, "queue": ast.unparse(queue.value), "leaves": ast.unparse(ends[0].body[0])}
    return {}


def fresh_lock(place: Frame | None) -> Mapping[str, object]:
    """The words of the fix for a loader's worker that waits for a lock which it got by the fork; nothing where it waits for another thing."""
    found = host_waits.forked_lock(place) if place is not None else None
    if found is None:
        return {}
    owner, _, name = found.what.rpartition(".")
    of_object = f'lambda: setattr({owner}, "{name}", {found.made})'
    renew = of_object if owner else f"lambda: globals().update({name}={found.made})"
    return {"made_at": w.spot(found.at), "what": found.what, "renew": renew}


def bound_item(place: Frame | None) -> Mapping[str, object]:
    """The words of the fix for a loader's worker that is in a loop without a bound; nothing where it is not."""
    loop = endless_loop(place) if place is not None else None
    if place is None or loop is None:
        return {}
    return {"loop_at": w.line_at(place.file, loop.lineno), "item_of": place.function}


def _search_of_item(frames: Sequence[Frame]) -> Mapping[str, object]:
    """The words of the fix for a worker that looks in a `while` for a part of one item of a map-style data set; nothing where it waits, or does something else."""
    own = user_frames(frames)
    if not own or (frames[0] != own[0] and not _DRAWS.search(frames[0].file)):
        return {}
    found = next(((f, n) for f in own if isinstance(n := loop_around(f.file, f.line), ast.While)), None)
    gives = next((f for f in own if f.function == "__getitem__"), None)
    function = function_at(gives.file, gives.line) if gives is not None else None
    if (
        found is None
        or gives is None
        or function is None
        or len(function.args.args) != 2
        or own.index(found[0]) > own.index(gives)
    ):
        return {}
    at, loop = found
    return {
        "loop_at": w.line_at(at.file, loop.lineno), "item_of": at.function,
        "gives_at": w.line_at(gives.file, function.lineno), "index": (index := function.args.args[1].arg),
        "draws_item": any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == index for n in ast.walk(loop)),
    }  # fmt: skip


_RENAMES, _OF_ONE = (
    ("replace", "rename", "move"),
    re.compile(r"pid|uuid|rank|mkstemp|mkdtemp|Temporary|time|random", re.IGNORECASE),
)


def of_temporary(error: RaisedError) -> Fix | None:
    """For a temporary file that several processes write and rename: the first one takes it from the others, also where each is the first of its node."""
    frame = next(iter(user_frames(error.frames)), None)
    calls = [c for c in calls_on(frame.file, frame.line) if last_name(c.func) in _RENAMES] if frame is not None else []
    if frame is None or " -> " not in error.message or len(calls) != 1 or not isinstance(calls[0].func, ast.Attribute):
        return None
    source = calls[0].args[0] if len(calls[0].args) > 1 else calls[0].func.value
    sets = [n for n in inside(function_at(frame.file, frame.line), ast.Assign) if isinstance(source, ast.Name)]
    made = [n for n in sets if ast.unparse(source) in map(ast.unparse, n.targets) and n.lineno < frame.line]
    if len(made) != 1 or _OF_ONE.search(ast.unparse(made[0].value)):
        return None
    name = ast.unparse(source)
    return edit(
        f"Give each writer a temporary file of its own: several processes write `{name}`, and the first one renames it away",
        f"# behind {w.line_at(frame.file, made[0].lineno)}: `{ast.unparse(made[0])}`\n"
        f'{name} = type({name})(f"{{{name}}}.{{os.getpid()}}")   # import os; a text or a Path, as before',
        verify=CLEAN,
    )
