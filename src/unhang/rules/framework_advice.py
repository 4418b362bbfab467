"""First fixes for calls that a framework makes: what the program sets, gives or leaves to all ranks, so that they are the same on each."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from unhang.analyze.calls import framework_settings
from unhang.analyze.calls.divergence import Divergence, library_tests
from unhang.analyze.calls.framework_loops import LeftFramework, own_loader, stops_by_metrics, train_loader
from unhang.analyze.lines.pasted import RANK_ZERO_FIRST
from unhang.analyze.program import metrics
from unhang.analyze.program.decisions import unsynced_monitor
from unhang.analyze.program.early_ends import salted_hash
from unhang.analyze.program.sides import lost_dimension
from unhang.analyze.program.source import Condition, function_at, nodes_around, surroundings
from unhang.analyze.program.trees import covers, line_text, tree_of
from unhang.analyze.situation import Situation
from unhang.analyze.waits.locks import blocks_at, held_by
from unhang.model import Fix, Frame, RaisedError, user_frames
from unhang.model.findings import LOOK
from unhang.rules import wording as w
from unhang.rules.base import AGAIN, CLEAN, edit
from unhang.rules.early_ends import as_many, dealt_out_by_trainer, one_hash

_OPTIMIZERS = "/torch/optim/"


def of_gone(s: Situation, d: Divergence, gone: LeftFramework, even: tuple[str, ...]) -> tuple[str | Fix, ...]:
    """What helps those who left a framework's loop, the program's own line first where that is known. `even`: what helps where the data is uneven."""
    if gone.stop:
        return (of_stop(gone.stop) or "stop",)
    if (uneven := _uneven_by_program(gone)) is not None:
        return (uneven[1], *even)
    shown = of_same_stop(gone) if gone.has_data else of_left_loop(s, d, gone)
    return (*filter(None, (shown,)), *(("same stop",) if gone.has_data else even))


def at_gone(gone: LeftFramework, usual: Frame) -> Frame:
    """Where the program lets some ranks leave a framework's loop; `usual`: where nothing in it tells."""
    if (uneven := _uneven_by_program(gone)) is not None:
        return uneven[0]
    sized = framework_settings.sized_apart(gone.line.file) if not (gone.stop or gone.has_data) else None
    return gone.stop or (sized.at if sized else usual)


def _uneven_by_program(gone: LeftFramework) -> tuple[Frame, Fix] | None:
    """The program's own line that gives the ranks more or fewer batches, and what helps there; None where the source shows none."""
    path, is_open = gone.line.file, not (gone.stop or gone.has_data)
    if is_open and (salted := salted_hash(path)) is not None:
        return salted.at, one_hash(salted)
    if gone.batches and (made := train_loader(path)) is not None:
        return made.at, as_many(made)
    if is_open and (own := own_loader(path, gone.loop.function)) is not None:
        return own, dealt_out_by_trainer(own)
    return None


def say_gone(gone: LeftFramework) -> str:
    """Which words say it."""
    if gone.batches:
        return "through"
    return "asked to stop" if gone.stop else "stopped" if gone.has_data else "left a framework"


def why_gone(gone: LeftFramework) -> str:
    """What may have made the rounds fewer, in a sentence."""
    if gone.batches:
        fewer, more = gone.batches
        return f"The newest loader has {fewer} batches on {w.name_ranks(gone.leavers)}, and {more} on {w.name_ranks(gone.stayers)}."
    sized = framework_settings.sized_apart(gone.line.file)
    if sized is None:
        return "A loader with a different number of batches has this effect, or a request to stop on one rank alone."
    return f"How large a batch is each rank finds for itself: `{sized.name} = {sized.text}` ({w.spot(sized.at)})."


def of_left_loop(s: Situation, d: Divergence, gone: LeftFramework) -> Fix | None:
    """For ranks that left a loop of a framework, where the program shows why it is not as long on all of them."""
    stayed = d.reference_call if gone.leavers == d.odd else d.odd_call
    if metrics.is_metric(stayed) and (left_out := metrics.left_out_update(gone.line)) is not None:
        name, way = w.base_name(left_out.update.file), left_out.way
        does = "goes on without" if way.goes_on else "decides over"
        return edit(
            "Update the metric in every round, on every rank",
            f"{name}:{left_out.update.line}: move {left_out.metric}.update(...) in front of line {way.line}: `{way.text}` {does} it, and "
            f"what the metric keeps in lists is gathered item by item, so that all ranks need as many. A tensor without rows is an item, too",
        )
    if (sized := framework_settings.sized_apart(gone.line.file)) is not None:
        return edit(
            "Agree on one size of batch: each rank finds its own here, and makes as many rounds as that takes",
            f"# {w.spot(sized.at)}, behind `{sized.name} = {sized.text}`, on every rank, once the group is there: the smallest that any rank finds\n"
            f"sizes = [None] * dist.get_world_size(); dist.all_gather_object(sizes, {sized.name}); {sized.name} = min(sizes)",
        )
    if "/transformers/" in gone.loop.file:
        return _even_data(gone)
    if (limit := framework_settings.limit_of(s, d, gone)) is not None:
        return edit(
            "Let all ranks make as many batches as those with the fewest",
            f"{w.spot(limit.at)}: Trainer(..., {limit.name}={limit.batches})   # {w.name_ranks(gone.leavers)} "
            f"had {limit.batches}; or shards of one size for every rank",
        )
    return None


def _even_data(gone: LeftFramework) -> Fix | None:
    """For a Trainer whose ranks have data sets of their own: as many items on each."""
    name = "eval_dataset" if gone.loop.function in ("evaluation_loop", "prediction_loop") else "train_dataset"
    line, given = framework_settings.given_data(gone.line.file, name)
    if not line:
        return None
    if framework_settings.is_iterable(gone.line.file, given):
        return edit(
            "Give the Trainer the same number of items on every rank",
            f"{w.line_at(gone.line.file, line)}: {name}={given} has no length, and ends where the items of this rank end: let each rank "
            "have a list of as many, or leave the same ones out everywhere",
            kind=LOOK,
        )
    return edit(
        "Give the Trainer the same number of items on every rank",
        f"# {w.line_at(gone.line.file, line)}: {name}=even({given}) instead, and before that\n"
        "def even(data):   # as many as the rank with the fewest has\n"
        "    sizes = [None] * torch.distributed.get_world_size()\n"
        "    torch.distributed.all_gather_object(sizes, len(data))\n"
        "    return torch.utils.data.Subset(data, range(min(sizes)))",
        does="end together",
    )


def of_same_stop(gone: LeftFramework) -> Fix | None:
    """For ranks that a framework stopped by its own decision: the metrics that the program computes for it on each rank."""
    if any(part in gone.loop.file for part in framework_settings.LIGHTNING):
        return of_monitor(unsynced_monitor(str(Path(gone.line.file).parent)))
    line, given = framework_settings.computed_metrics(gone.line.file)
    if not line or not stops_by_metrics(gone.line.file):
        return None
    return edit(
        "Give the framework metrics that are the same on every rank: it stops by them",
        f"# {w.line_at(gone.line.file, line)}: compute_metrics=same_metrics instead, and before that\n"
        f"own_metrics = {given}\n"
        "def same_metrics(prediction):   # those of rank 0, on every rank\n"
        "    box = [own_metrics(prediction)]\n"
        "    torch.distributed.broadcast_object_list(box, src=0)\n"
        "    return box[0]",
    )


def of_monitor(monitor: tuple[Frame, str] | None) -> Fix | None:
    """For a value that a callback of Lightning goes by, and that each rank has for itself. `monitor`: the line that logs it, and its name."""
    if monitor is None:
        return None
    at, name = monitor
    return edit(
        f"Give `{name}` the same value on every rank: a callback decides by it",
        f"# {w.spot(at)}: add sync_dist=True to `{line_text(at.file, at.line)}`\nself.log({name!r}, ..., sync_dist=True)",
    )


def of_stop(stop: Frame) -> Fix | None:
    """For a line that asks a framework to stop: the test that leads to it, asked together where every rank comes to it, else what its hook decides."""
    tests = surroundings(stop.file, stop.line).conditions
    if not tests:
        return None
    test, name = tests[-1], w.base_name(stop.file)
    tree = tree_of(stop.file)
    imported = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)) if tree is not None else ()
    is_lightning = any("lightning" in ast.unparse(n) for n in imported)
    if any(c.depends_on_rank for c in tests) or any(c.suspicion for c in tests[:-1]):
        advice = _in_the_hook(stop, is_lightning)
    else:
        together = (
            "stop = trainer.strategy.reduce_boolean_decision(stop, all=False)"
            if is_lightning
            else "stop = torch.tensor(float(stop)); dist.all_reduce(stop, op=dist.ReduceOp.MAX); stop = bool(stop)"
        )
        advice = f"# {name}:{test.line}, instead of `if {test.text}:`, where every rank comes\nstop = {test.text}\n{together}\nif stop:"
    if not advice:
        return None
    return edit(
        "Let all ranks decide on the stop together",
        advice,
        verify=f"{AGAIN}: all ranks stop at the same step",
        does="decide together",
    )


def _in_the_hook(stop: Frame, is_lightning: bool) -> str:
    """The hook of a callback or module in which a line asks for the stop, with the agreement of all ranks behind it; empty where it is none."""
    hook = function_at(stop.file, stop.line)
    parameters = [a.arg for a in hook.args.args] if hook is not None else []
    around = nodes_around(stop.file, stop.line)
    sets = next(
        (n.targets[0] for n in around if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Attribute)), None
    )
    asked = ast.unparse(sets.value) if sets is not None else ""
    is_known = asked in parameters or asked.partition(".")[0] == "self"
    if hook is None or sets is None or parameters[:1] != ["self"] or not hook.name.startswith("on_") or not is_known:
        return ""
    together = (
        f"{asked}.{sets.attr} = {asked}.strategy.reduce_boolean_decision({asked}.{sets.attr}, all=False)"
        if is_lightning
        else f"stop = torch.tensor(float({asked}.{sets.attr})); dist.all_reduce(stop, op=dist.ReduceOp.MAX)\n    {asked}.{sets.attr} = bool(stop)"
    )
    given = ", ".join(
        [
            *parameters[1:],
            *(f"*{a.arg}" for a in [hook.args.vararg] if a),
            *(f"**{a.arg}" for a in [hook.args.kwarg] if a),
        ]
    )
    return (
        f"# {w.line_at(stop.file, hook.lineno)}: rename {hook.name} to {hook.name}_here, and beside it, for every rank\n"
        f"def {hook.name}(self, {given}):\n"
        f"    self.{hook.name}_here({given})\n"
        f"    {together}"
    )


def of_stop_apart(d: Divergence) -> Fix | None:
    """For ranks that are through with the training of a framework while others train, by metrics that each computed for itself."""
    line = framework_settings.trains_below(d)
    return _same_metrics(line, "stops", "early stopping") if line is not None else None


def of_best_metric(d: Divergence) -> Fix | None:
    """For a call of a Trainer that only ranks make whose own metric has once been the best."""
    is_asked = any(_BEST.search(c.text) for c in library_tests(d))
    return (
        _same_metrics(d.location, "saves", "`metric_for_best_model`") if is_asked and d.location is not None else None
    )


_BEST = re.compile(r"\bbest_(?:metric|global_step|model_checkpoint)\b")


def _same_metrics(line: Frame, does: str, what: str) -> Fix | None:
    own = metrics.own_metrics(str(Path(line.file).parent))
    if own is None:
        return None
    return edit(
        f"Give the framework metrics that are the same on every rank: it {does} by them",
        f"# {w.spot(own.at)}, before this line: `{own.name}` holds what this rank alone has computed, and {what} decides by it\n"
        f"for name, value in {own.name}.items():\n"
        f"    mine = torch.tensor([float(value), 1.0] if value == value else [0.0, 0.0], device=self.args.device)\n"
        f"    torch.distributed.all_reduce(mine)   # a rank whose value is NaN does not count\n"
        f"    {own.name}[name] = (mine[0] / mine[1]).item()",
    )


def of_apart(d: Divergence) -> Fix | None:
    """For ranks that no condition has parted: what a framework stopped apart, or a block in which one rank goes first."""
    return of_stop_apart(d) or out_of_first(d) or of_closure(d)


def of_kept_result(line: Frame) -> Fix:
    """For a metric of torchmetrics whose result some ranks did not gather. `line`: where the others compute it."""
    return edit(
        "Update the metric on every rank before it is computed: without an update it returns the result that it keeps, and gathers nothing",
        f"# {w.spot(line)}: `{line_text(line.file, line.line)}`\n"
        "metric.update(...)   # in every round, on every rank, also with an empty selection\n"
        "# or make the metric with compute_with_cache=False, so that it gathers whenever it is computed",
    )


def of_guarded_update(d: Divergence) -> Fix | None:
    """For a metric of torchmetrics whose lists are of another shape, as a rank has put nothing into them."""
    if d.location is None or not metrics.is_metric(d.odd_call):
        return None
    if (found := metrics.guarded_update(d.location)) is None:
        return None
    metric, at, test = found
    return edit(
        f"Update `{metric}` on every rank, also with nothing: what it has never been given is gathered in another shape",
        f"{w.spot(at)}: take `{line_text(at.file, at.line)}` out of `{test.text}`; a selection without rows keeps its other dimensions",
    )


def of_closure(d: Divergence) -> Fix | None:
    """For ranks of which some are still in a step of an optimizer that asks the program's closure as often as the value demands."""
    for frames in (d.reference_call.frames or (), d.odd_call.frames or ()):
        steps = [i for i, f in enumerate(frames) if _OPTIMIZERS in f.file and f.function == "step"]
        asked = user_frames(frames[: steps[-1]])[-1:] if steps else ()
        closure = function_at(asked[0].file, asked[0].line) if asked else None
        returns = [n for n in ast.walk(closure) if isinstance(n, ast.Return) and n.value] if closure is not None else []
        if closure is None or not returns or "reduce" in ast.unparse(closure):
            continue
        last, value = returns[-1], ast.unparse(returns[-1].value or returns[-1])
        return edit(
            f"Return the same loss from {closure.name}() on every rank: the optimizer asks it as often as its value demands",
            f"# {w.line_at(asked[0].file, last.lineno)}, in place of `return {value}`\n"
            f"mean = {value}.detach().clone(); dist.all_reduce(mean)\n"
            "return mean / dist.get_world_size()   # the gradients are averaged by DDP, the loss is not",
        )
    return None


def _goes_first(block: ast.With | ast.AsyncWith) -> str:
    """What a block holds, where the first rank goes first by it; empty where it does not."""
    text = ", ".join(sorted(held_by(block)))
    return text if RANK_ZERO_FIRST.search(text) else ""


def within_first(error: RaisedError) -> Fix | None:
    """For an exception that leaves a block in which the first rank goes first, and is handled around it: the others wait for the end of the block."""
    handler = error.handler
    if handler is None:
        return None
    raised = [f.line for f in user_frames(error.frames) if f.file == handler.file]
    for one in (n for n in nodes_around(handler.file, handler.line) if isinstance(n, ast.Try)):
        block = one.body[0]
        if len(one.body) != 1 or not isinstance(block, ast.With) or not any(covers(block, line) for line in raised):
            continue
        if _goes_first(block) and not (one.orelse or one.finalbody):
            inner: list[ast.stmt] = [ast.Try(block.body, one.handlers, [], [])]
            return edit(
                "Handle it within the block: the others wait for the end of that, which the exception leaves out",
                f"# {w.line_at(handler.file, one.lineno)}, in place of this `try` and its `except`\n"
                f"{ast.unparse(ast.fix_missing_locations(ast.With(block.items, inner)))}",
                verify=CLEAN,
            )
    return None


def out_of_first(d: Divergence) -> Fix | None:
    """For a call that rank 0 makes in a block in which it goes first: the others wait at its head until it has left it."""
    fork = d.fork
    if fork is None or fork.left.file != fork.right.file:
        return None
    for block in blocks_at(fork.left):
        text = _goes_first(block)
        if text and any(covers(statement, fork.right.line) for statement in block.body):
            return edit(
                "Move the call out of the block: in it the first rank is alone until it has left it",
                f"{w.spot(fork.right)}: put it behind the block of line {block.lineno} (`with {text}:`), one level further left, "
                "where all ranks come together; what the first rank prepares for the others stays in the block",
                does="every rank calls",
            )
    return None


def read_before(frame: Frame, condition: Condition, above: Frame | None) -> Fix | None:
    """For a line under a condition on the rank that reads a property of a library's object, which makes the call. `above`: the library's frame."""
    text = framework_settings.property_read(frame.file, frame.line, above.function) if above is not None else ""
    if not text or above is None:
        return None
    place, name = w.line_at(condition.path, condition.line), above.function
    function = function_at(frame.file, frame.line)
    if function is not None and condition.line < function.lineno:  # a decorator
        first = f"# {place}: take @{condition.text} off; first in {function.name}(), on every rank\n{name} = {text}\n"
        first += "if dist.get_rank() != 0: return"
    else:
        first = f"# {place}, before `{condition.text}`, on every rank\n{name} = {text}"
    return edit(
        f"Read `{text}` on every rank: it waits for all of them",
        f"{first}\n# line {frame.line}: {name} instead of {text}",
        does="every rank calls",
    )


def of_lost_dimension(d: Divergence) -> Fix | None:
    """For a tensor that has fewer dimensions on a rank which has one row of it."""
    lost = lost_dimension(d.odd_call, d.reference_call, d.odd_path)
    if lost is None:
        return None
    return edit(
        f"Keep the first dimension: `{lost.call}` takes it out where a rank has one row, and its sizes are then fewer",
        f"# {w.spot(lost.at)}, in place of `{lost.statement}`, on every rank\n"
        f"whole = {lost.whole}\n"
        f"{lost.statement.replace(lost.call, 'whole.reshape(len(whole), *(n for n in whole.shape[1:] if n != 1))', 1)}",
    )


def of_sets_in_turn(d: Divergence) -> Fix | None:
    """For a Trainer that evaluates one data set after the other, where each rank has them in an order of its own."""
    made = framework_settings.sets_as_they_come(d, d.location.file) if d.location is not None else None
    if made is None:
        return None
    at, given = made
    return edit(
        "Evaluate the data sets in one order on every rank: they stand in the dict as they came",
        f"# {w.spot(at)}, in place of `return {given}`\nreturn dict(sorted({given if given.isidentifier() else f'({given})'}.items()))",
    )


def of_asked_ahead(frames: Sequence[Frame]) -> Fix | None:
    """For a sampler that makes calls with others: a loader asks it as far ahead as it has workers."""
    found = framework_settings.asked_ahead(frames)
    if found is None:
        return None
    return edit(
        "Give the loader as many workers on every rank: its sampler makes calls with the other ranks, and is asked as far ahead as there are workers",
        f"# {w.spot(found.made)}, in place of `num_workers={found.workers}`\nnum_workers={found.even}   # or another number, the same on every rank\n"
        f"# or make no call with others in the sampler ({w.spot(found.asks)}), but in the loop over the loader, in the same round on every rank",
    )
