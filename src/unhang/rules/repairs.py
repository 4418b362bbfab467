"""First fixes that the program itself shows: where a number begins to be none, what a label stands for, what only some ranks have set, what all of them move."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.programs import unlike_copies
from unhang.analyze.program import shared_state
from unhang.analyze.program.finite import asks_for_finite, origin_in, raised_for
from unhang.analyze.program.source import around, surroundings
from unhang.analyze.program.trees import calls_on, covers, inside, last_name, names_in, parameters_of, program_nodes
from unhang.analyze.situation import Situation
from unhang.model import Case, Fix, Frame, Gate, RaisedError, user_frames
from unhang.model.findings import LOOK
from unhang.rules import wording as w
from unhang.rules.advice import gate_of
from unhang.rules.base import AGAIN, CLEAN, Found, edit
from unhang.rules.failure import names_cause
from unhang.rules.item_repairs import of_item
from unhang.rules.known_repairs import of_error

_OF_A_LABEL = re.compile(r"Target (-?\d+) is out of bounds")
_UNSET = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


def of_exception(error: RaisedError, frame: Frame | None, case: Case) -> tuple[tuple[str | Fix, ...], Gate | None]:
    """What mends an exception, by the program, else by what is known of the message; and the test of a number that is none, for which the program raised it."""
    if frame is not None and raised_for(frame):
        check = around(frame).conditions[-1]
        return (*of_not_finite(frame, check.test), "mend"), gate_of(check)
    shown = _by_program(error, frame) if frame is not None else None
    return (shown or of_error(error, frame) or of_item(error, case) or "mend",), None


def _by_program(error: RaisedError, frame: Frame) -> Fix | None:
    found = of_label(error, frame) or of_unset(error, frame) or of_one_item(error)
    return found or of_lost_graph(error, frame) or of_monitored(error, frame)


def of_lost_graph(error: RaisedError, frame: Frame) -> Fix | None:
    """For a loss that is a plain zero where a rank has nothing to learn from: it has no gradient, and backward() raises."""
    if "does not require grad and does not have a grad_fn" not in error.message:
        return None
    found = [
        (path, function, one)
        for path, function in program_nodes(str(Path(frame.file).parent))
        if isinstance(function, ast.FunctionDef)
        for gate in inside(function, ast.If)
        for one in inside(gate, ast.Return)
        if _is_plain_zero(one.value)
    ]
    if len(found) != 1:
        return None
    path, function, one = found[0]
    given = [name for name in parameters_of(function) if name not in ("self", "cls")]
    others = [n for n in function.body if given and not covers(n, one.lineno) and given[0] in names_in(n)]
    if not others:
        return None
    return edit(
        f"Return a zero that has a gradient, where a rank has nothing to learn from: `{ast.unparse(one)}` has none",
        f"# {w.line_at(path, one.lineno)}, in place of `{ast.unparse(one)}`\n"
        f"return {given[0]}.sum() * 0.0   # the rank takes part in backward() as the others do, and adds nothing",
        verify=CLEAN,
    )


def _is_plain_zero(value: ast.expr | None) -> bool:
    match value:
        case ast.Call(func=ast.Attribute(attr="tensor"), args=[ast.Constant(value=0 | 0.0)]):
            return "requires_grad" not in {k.arg for k in value.keywords}
        case ast.Call(func=ast.Attribute(attr="new_zeros" | "new_tensor")):
            return True
    return False


_MONITORED = re.compile(r"monitor='(\w+)'\)?`? could not find the monitored key")


def of_monitored(error: RaisedError, frame: Frame) -> Fix | None:
    """For a value by which a callback of Lightning goes on every rank, and that one rank alone logs."""
    found = _MONITORED.search(error.message)
    logs = [
        (path, c)
        for path, c in program_nodes(str(Path(frame.file).parent))
        if found and isinstance(c, ast.Call) and ast.unparse(c.func) == "self.log" and len(c.args) == 2
        if isinstance(c.args[0], ast.Constant) and c.args[0].value == found[1]
    ]
    if found is None or len(logs) != 1 or not isinstance(logs[0][1].args[1], ast.Name):
        return None
    path, call = logs[0]
    gates = [c for c in surroundings(path, call.lineno).conditions if c.only_on_rank_zero]
    if len(gates) != 1 or len(surroundings(path, call.lineno).conditions) != 1:
        return None
    value = ast.unparse(call.args[1])
    return edit(
        f"Log `{found[1]}` on every rank: a callback looks for it on each, and it is logged only if `{gates[0].text}`",
        f"# {w.line_at(path, call.lineno)}: take `{ast.unparse(call)}` out of the block of line {gates[0].line}, and behind that block, on every rank\n"
        f"{value} = self.trainer.strategy.broadcast({value} if {gates[0].text} else None)\nself.log({found[1]!r}, {value})",
        verify=CLEAN,
    )


def of_label(error: RaisedError, frame: Frame) -> Fix | None:
    """For a label that the program itself puts where there is none: the loss is to leave it out."""
    found = _OF_A_LABEL.search(error.text)
    label = shared_state.label_set(str(Path(frame.file).parent), int(found[1])) if found else None
    loss = shared_state.loss_at(frame) if label is not None else None
    if found is None or label is None or loss is None:
        return None
    counted = shared_state.counts_labels(str(Path(frame.file).parent))
    counts = (
        f"\n# {w.spot(counted[0])} counts by label: leave items of label {found[1]} out there, too" if counted else ""
    )
    return edit(
        f"Leave the label {found[1]} out of the loss: it is no class, the program sets it where an item has none ({w.spot(label)})",
        f"# {w.spot(loss.at)}, in place of `{loss.text}`\n{loss.ignores(found[1])}{counts}",
        verify=CLEAN,
    )


def of_unset(error: RaisedError, frame: Frame) -> Fix | None:
    """For an attribute that is set on some ranks alone: all are to set it, or to get it."""
    found = _UNSET.search(error.text) if error.type.endswith("AttributeError") else None
    sets = shared_state.set_by_some(str(Path(frame.file).parent), found[1], found[2]) if found else None
    if found is None or sets is None:
        return None
    name = f"self.{found[2]}"
    if sets.function == "prepare_data":
        body = "\n".join(sets.needs)
        return edit(
            f"Set `{name}` in setup(), which runs on every rank: prepare_data() runs on the first rank of a node alone",
            f"# {w.line_at(sets.at.file, sets.setup)}: at the head of setup(), with what it needs; what prepare_data() writes to disk stays there\n{body}",
            verify=CLEAN,
        )
    return edit(
        f"Give `{name}` to every rank: it is set only if `{sets.test}`",
        f"# {w.spot(sets.at)}: behind the `if` of line {sets.gate}, one level further left, on every rank\n"
        f"box = [getattr(self, {found[2]!r}, None)]\n"
        f"dist.broadcast_object_list(box, src=0)   # rank 0 has it\n{name} = box[0]",
        verify=CLEAN,
    )


def of_one_item(error: RaisedError) -> Fix | None:
    """For a batch of one item, on which BatchNorm can not train: the loop over the loader gives it twice, so that no rank has fewer batches."""
    found = (
        shared_state.batch_of(user_frames(error.frames))
        if "Expected more than 1 value per channel" in error.text
        else None
    )
    if found is None:
        return None
    names, at = found.names, found.at
    twice = ", ".join(f"torch.cat([{name}, {name}])" for name in names)
    return edit(
        "Give a batch of one item twice: BatchNorm can not train on one value, and all ranks keep as many batches",
        f"# {w.spot(at)}, in front of this line, on every rank\nif len({names[0]}) == 1:\n    {', '.join(names)} = {twice}\n"
        "# or drop_last=True of the loader, but only where all ranks have as many items: else some have a batch less",
        verify=CLEAN,
    )


def of_moved(frames: Sequence[Frame]) -> Fix | None:
    """For a path that all ranks move or remove: whoever is first takes it from those that still write or read there."""
    found = shared_state.moved_by_all(user_frames(frames))
    if found is None:
        return None
    body = "\n".join(f"    {line}" for line in found.whole.splitlines())
    return edit(
        f"Let one rank do `{found.call}`, when all have written: every rank comes to it, and the first one takes the path from the others",
        f"# {w.spot(found.at)}, in place of the statement there, on every rank\n"
        f"dist.barrier()   # all have written\nif dist.get_rank() == 0:\n{body}\ndist.barrier()   # nobody goes on before it is there",
        verify=CLEAN,
    )


_MAKES = {
    "copytree": "dirs_exist_ok=True", "makedirs": "exist_ok=True", "mkdir": "exist_ok=True", "touch": "exist_ok=True",
}  # fmt: skip


def of_existing(error: RaisedError) -> Fix | None:
    """For a folder that every rank makes, of which all but the first find it: the call of the program that refuses it."""
    frame = next(iter(user_frames(error.frames)), None)
    if not error.type.endswith("FileExistsError") or frame is None:
        return None
    calls = [c for c in calls_on(frame.file, frame.line) if last_name(c.func) in _MAKES]
    if len(calls) != 1:
        return None
    name, whole = last_name(calls[0].func), ast.unparse(calls[0])
    given = {k.arg for k in calls[0].keywords}
    if None in given or _MAKES[name].partition("=")[0] in given:
        return None
    made = f"os.makedirs{whole.removeprefix('os.mkdir')}" if whole.startswith("os.mkdir(") else whole
    safe = f"{made[:-1]}{', ' if calls[0].args or given else ''}{_MAKES[name]})"
    return edit(
        f"Let `{ast.unparse(calls[0].func)}` take what is there: every rank comes to it, and all but the first find it",
        f"# {w.spot(frame)}, in place of `{whole}`\n{safe}\n# or on rank 0 alone, with dist.barrier() behind it on every rank",
        verify=CLEAN,
    )


_TIME_STAMP = re.compile(r"(?<!\d)20\d{6}[-_T.]?\d{4,6}(?!\d)|(?<!\d)20\d\d-\d\d-\d\d[-_T ]\d\d|(?<!\d)1\d{9}(?!\d)")
_FILE = re.compile(r"No such file.*\.\w{1,8}['\"]")


def of_path(head: str) -> tuple[str, ...]:
    """Fixes by what is missing: what another node wrote; a name with the time in it, which each rank makes for itself; a file; a folder."""
    if names_cause(head, "cause.file_not_shared"):
        return ("gather",)
    if _TIME_STAMP.search(head):
        return ("one name", "wait")
    return ("wait", "folder") if _FILE.search(head) else ("folder", "wait")


def of_not_finite(frame: Frame | None, test: ast.expr) -> tuple[Fix, ...]:
    """For a test of a number that is none: where that may begin."""
    is_asked = frame is not None and asks_for_finite(test)
    origin = origin_in(str(Path(frame.file).parent)) if frame is not None and is_asked else None
    if origin is None:
        return ()
    return (
        edit(
            f"Bound `{origin.of}`: where it is zero, the loss is no number",
            f"# {w.spot(origin.at)}, in place of `{origin.text}`\n{origin.safe}",
            verify=CLEAN,
        ),
    )


def of_limit(frame: Frame) -> Fix | None:
    """For work that the first rank does in a block of a library, at which the others wait to the limit of the group: the program sets it, too short."""
    limit = shared_state.limit_set(str(Path(frame.file).parent))
    if limit is None:
        return None
    return edit(
        f"Give the group a limit that is longer than the work: the others wait for it to the limit of {w.spot(limit.at)}",
        f"# {w.spot(limit.at)}, in place of `{limit.text}`\n{limit.longer}   # rank 0 is at work; or do that work before the group is made",
        verify=CLEAN,
    )


def of_list(found: shared_state.ListOfCalls) -> Fix:
    """For a list that is gathered item by item, of which the ranks have different numbers."""
    return edit(
        f"Gather the list in one call: `{found.call}` makes one for each item, and the ranks have not as many",
        f"# {w.spot(found.at)}, in place of `{found.text}`, on every rank\n"
        f"from accelerate.utils import gather_object\n{found.joined}   # the items of all ranks in one list, however many each has",
    )


_EVALUATES, _TRAINS = "/loops/evaluation_loop.py", "/loops/training_epoch_loop.py"


def of_parts(d: Divergence) -> Fix | None:
    """For ranks of which some have come to an evaluation in Lightning, as a setting is a part of a loader that is not as long on all ranks."""
    sides = [[f.file for f in c.frames or ()] for c in (d.odd_call, d.reference_call)]
    evaluates = [any(file.endswith(_EVALUATES) for file in side) for side in sides]
    is_in_epoch = all(
        any(file.endswith(_TRAINS) for file in side) or own for side, own in zip(sides, evaluates, strict=True)
    )
    found = shared_state.part_of_loader(_folder(d)) if sum(evaluates) == 1 and is_in_epoch else None
    if found is None:
        return None
    title = f"Give every rank as many batches: `{found.text}` ({w.spot(found.at)}) is a part of each rank's own loader, and these are not as long"
    if found.made is None:
        name, _, part = found.text.partition("=")
        return edit(
            title,
            f"# {w.spot(found.at)}, in place of `{found.text}`; least: the batches of the rank with the fewest\n"
            f"{name}=int({part} * least)   # a whole number of batches, the same on every rank"
            + ("" if name == "limit_train_batches" else "\nlimit_train_batches=least"),
        )
    return edit(
        title,
        f"# {w.spot(found.made)}, in train_dataloader(), on every rank\ndata = {found.data}\n"
        "sizes = [None] * torch.distributed.get_world_size()\n"
        "torch.distributed.all_gather_object(sizes, len(data))\n"
        "data = torch.utils.data.Subset(data, range(min(sizes)))   # as many as the rank with the fewest has\n"
        f"return {found.loader}",
    )


_DRAWS = ("sample", "choice", "choices", "shuffle", "permutation")


def of_draws(d: Divergence) -> Fix | None:
    """For ranks at different places in Lightning's loops, where each has drawn by itself what its loader goes over."""
    sides = [[f.file for f in c.frames or ()] for c in (d.odd_call, d.reference_call)]
    if not all(any("/lightning/" in f or "/pytorch_lightning/" in f for f in side) for side in sides):
        return None
    hooks = [
        (path, n)
        for path, n in program_nodes(_folder(d))
        if isinstance(n, ast.FunctionDef) and n.name in ("train_dataloader", "val_dataloader")
    ]
    named = {last_name(n) for _, n in program_nodes(_folder(d)) if isinstance(n, ast.Name | ast.Attribute)}
    drawn = [(path, c) for path, hook in hooks for c in inside(hook, ast.Call) if _draws_freely(c)]
    if len(drawn) != 1 or named & {"seed", "seed_everything", "set_seed"}:
        return None
    path, call = drawn[0]
    method, given = last_name(call.func), ", ".join(map(ast.unparse, (*call.args, *call.keywords)))
    maker = "random.Random" if ast.unparse(call.func).startswith("random.") else "numpy.random.default_rng"
    return edit(
        f"Draw the same on every rank: `{ast.unparse(call.func)}` draws from a generator that each rank has begun by itself",
        f"# {w.line_at(path, call.lineno)}, in place of `{ast.unparse(call)}`\n{maker}(self.trainer.current_epoch).{method}({given})",
        verify=CLEAN,
    )


def _draws_freely(call: ast.Call) -> bool:
    """Whether it draws by the generator of the module `random`, or of numpy."""
    of, _, name = ast.unparse(call.func).rpartition(".")
    return of in ("random", "np.random", "numpy.random") and name in _DRAWS


def of_resumed(d: Divergence) -> Fix | None:
    """For ranks of which some train and others evaluate in a Trainer that goes on from what each rank has found."""
    sides = [{f.function for f in c.frames or () if "/transformers/" in f.file} for c in (d.odd_call, d.reference_call)]
    is_apart = [side & {"training_step", "evaluation_loop"} for side in sides]
    found = (
        shared_state.resumes_from(_folder(d)) if is_apart[0] and is_apart[1] and is_apart[0] != is_apart[1] else None
    )
    if found is None:
        return None
    at, name = found
    return edit(
        f"Let all ranks go on from one checkpoint: `{name}` is what each finds for itself, and they are at different steps",
        f"# {w.spot(at)}, in front of this line, on every rank\n"
        "found = [None] * torch.distributed.get_world_size()\n"
        f"torch.distributed.all_gather_object(found, os.path.basename(str({name})) if {name} else None)\n"
        f"{name} = {name} if all(found) and len(set(found)) == 1 else None   # else all begin anew\n"
        "# and TrainingArguments(..., save_on_each_node=True), or an output_dir that all nodes see: else one node alone has checkpoints",
    )


def _folder(d: Divergence) -> str:
    return str(Path(d.location.file).parent) if d.location is not None else ""


def of_copies(s: Situation, d: Divergence, found: Found) -> Found:
    """The same divergence where the ranks came to it through unlike copies of a file: what differs is the installation, not the way taken in it."""
    copies = unlike_copies(s.case.calls, d.reference[0], d.odd[0])
    ways = {f.file for f in (*d.odd_path, *d.made_path)}
    if copies is None or ways.isdisjoint({copies.mine.file, copies.theirs.file}):
        return found
    theirs, mine = PurePath(copies.mine.file), PurePath(copies.theirs.file)
    words = {"file": mine.name, "here": mine.parent.name, "there": theirs.parent.name, "odd": w.name_ranks(d.odd)}
    told = copies.theirs if copies.theirs.file in ways else copies.mine
    return replace(
        found,
        confidence=0.92,
        evidence=(*found.evidence, *w.code_line(copies.mine, "copy"), *w.code_line(copies.theirs, "copy")),
        words={**found.words, **words, "reference": w.name_ranks(d.reference)},
        say="copies",
        cause="version-mismatch",
        fixes=("one copy",),
        location=told,
        condition=None,
    )


def in_one_order(d: Divergence) -> tuple[Fix, ...]:
    """For two roles, each with a program of its own, that came to two calls which cannot meet."""
    if not d.of_roles or not d.odd_path or not d.reference_path:
        return ()
    (mine, odd), (theirs, others) = (
        (x.op.split(":")[-1], p[-1]) for x, p in ((d.odd_call, d.odd_path), (d.reference_call, d.reference_path))
    )
    return (
        edit(
            f"Let both roles come to {mine} and {theirs} in one order, and count their rounds alike",
            f"# {w.spot(odd)}: {mine} on {w.name_ranks(d.odd)}; {w.spot(others)}: {theirs} on {w.name_ranks(d.reference)}\n"
            "# which of the two does each role make first in a round, and from which number on does it count the rounds in which it makes it?",
            verify=f"{AGAIN}: all ranks pass this call",
            kind=LOOK,
        ),
    )


def guarded_in_role(d: Divergence) -> Frame | None:
    """Of two roles: the one line below the place where they part that a condition guards."""
    paths = (d.odd_path, d.reference_path) if d.of_roles and d.fork is not None else ()
    found = [f for p in paths for f in p[d.fork.depth + 1 :] if around(f).conditions] if d.fork is not None else []
    return found[0] if len(found) == 1 else None
