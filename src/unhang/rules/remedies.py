"""First fixes for calls that part where no condition around their line tells why: what a rank decides elsewhere, what an object or a framework does by itself."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.framework_loops import asked_for
from unhang.analyze.calls.framework_settings import LIGHTNING, has_one_more_buffer
from unhang.analyze.calls.handled import BegunAnew, raised_in_loss, skipped_calls
from unhang.analyze.program import decisions
from unhang.analyze.program.callpath import user_path
from unhang.analyze.program.may_differ import OPEN
from unhang.analyze.program.source import Condition, around, function_at, nodes_around, surroundings
from unhang.analyze.program.trees import line_text
from unhang.analyze.situation import Situation
from unhang.model import Case, Fix, Frame, RaisedError
from unhang.rules import wording as w
from unhang.rules.advice import deciding
from unhang.rules.base import AGAIN, CLEAN, edit
from unhang.rules.framework_advice import of_lost_dimension, of_monitor, within_first
from unhang.rules.graph_repairs import of_lost_graph
from unhang.rules.item_repairs import of_item, on_another_rank
from unhang.rules.repairs import of_draws, of_parts, of_resumed

_OF_DDP = "Expected to have finished reduction"  # raised where others wait in the line that raises it
_SEE = f"{AGAIN}: all ranks make the same calls"


class Remedy(NamedTuple):
    """`gate`: what all ranks should decide together; `at`: the line at fault, where that is known; `asks`: what it does, for the title; `why`: more."""

    fixes: tuple[Fix, ...] = ()
    gate: Condition | None = None
    at: Frame | None = None
    asks: str = ""
    why: str = ""


NO_REMEDY = Remedy()


def led_by_python(d: Divergence) -> Remedy | None:
    """For a call that Python itself leads to, as it gives up an object or makes a text for `logging`: no condition around the line decides there."""
    paths = (*d.odd_path, *d.reference_path)
    if (finalizer := next((f for f in paths if f.function == "__del__"), None)) is not None:
        return Remedy((_not_in_finalizer(d, finalizer),))
    return _of_logging(logged) if (logged := _logged_value(d)) is not None else None


def remedy_of(s: Situation, d: Divergence, frame: Frame | None, own: Sequence[Condition]) -> Remedy:
    """What mends it, where something in the program shows what led the ranks apart.

    `own`: the conditions of the frame's line that the other side's lines do not stand under.
    """
    if (asked := asked_for(d)) is not None:
        return _of_asked(asked)
    if has_one_more_buffer(s, d):
        return _same_buffers(d)
    if (unordered := _of_one_method(d)) is not None:
        return unordered
    folder = str(Path(d.location.file).parent) if d.location is not None else ""
    if folder and (outputs := _of_outputs(d, folder)) is not None:
        return outputs
    if folder and (lost := of_lost_graph(folder, d)) is not None:
        return Remedy((lost.fix,), at=lost.at, asks=f": {lost.text} ({w.spot(lost.at)}) leads out of its graph")
    if (shown := of_lost_dimension(d) or of_parts(d) or of_resumed(d) or of_draws(d)) is not None:
        return Remedy((shown,))
    if d.in_library and folder:
        return _of_library(d, folder)
    return _of_count(d, frame, own) if d.is_decided and frame is not None else _of_either_count(d)


def _logged_value(d: Divergence) -> Frame | None:
    """The line that gives `logging` a value whose text is made with the other ranks: the level of the rank's logger decides whether it is made."""
    for call in (d.reference_call if d.skipped else d.odd_call, d.odd_call):
        frames = call.frames or ()
        inner = next((i for i, f in enumerate(frames) if f.file.endswith("/logging/__init__.py")), len(frames))
        if any(f.is_user for f in frames[:inner]):
            return next((f for f in frames[inner:] if f.is_user), None)
    return None


def _of_logging(at: Frame) -> Remedy:
    calls = (n for n in nodes_around(at.file, at.line) if isinstance(n, ast.Call) and len(n.args) > 1)
    call = next((c for c in calls if not c.keywords and not any(isinstance(a, ast.Starred) for a in c.args)), None)
    shown = "text = str(value)   # and give the line this text"
    if call is not None:
        said, *values = map(ast.unparse, call.args)
        shown = f"text = {said} % ({', '.join(values)},)\n{ast.unparse(call.func)}(text)   # in place of the line"
    fix = edit(
        "Make the text on every rank, before it is logged: the level of the logger is each rank's own",
        f"# {w.spot(at)}, on every rank; logging makes the text only where the level lets the line through\n{shown}",
        verify=_SEE,
    )
    asks = ": the text is only made where the level of the rank's logger lets the line through"
    return Remedy((fix,), at=at, asks=asks, why=" What is logged there makes its own text with the other ranks.")


def _of_one_method(d: Divergence) -> Remedy | None:
    """For a method of one name that both sides are in, of objects of different classes, which one line goes over."""
    if len(d.odd_path) < 2 or len(d.reference_path) < 2 or d.odd_path[:-1] != d.reference_path[:-1]:
        return None
    mine, theirs, above = d.odd_path[-1], d.reference_path[-1], d.odd_path[-2]
    classes, given = [decisions.class_at(f) for f in (mine, theirs)], decisions.goes_over(above)
    if mine.function != theirs.function or None in classes or classes[0] == classes[1] or not given:
        return None
    fix = edit(
        f"Go over the objects in one order on every rank: the ranks are in {mine.function}() of different ones",
        f"# {w.spot(above)}, in front of this line, on every rank; a dict keeps the order in which its keys came\n"
        f"{given} = dict(sorted({given}.items()))   # and every rank has all of them",
        verify=_SEE,
    )
    why = f" {w.spot(above)} calls {mine.function}() of several objects: {w.name_ranks(d.odd)} came to that of {classes[0]}, the others to that of {classes[1]}."
    return Remedy((fix,), why=why)


def _of_outputs(d: Divergence, folder: str) -> Remedy | None:
    """For the Trainer's gathers in an evaluation, one for each output of the model: it gives other ones for some batches."""
    calls = [(f.file, f.function) for call in (d.odd_call, d.reference_call) for f in call.frames or ()]
    loops = [file for file, function in calls if function == "evaluation_loop" and "/transformers/" in file]
    found = decisions.optional_output(folder) if len(loops) == 2 else None
    if found is None:
        return None
    fix = edit(
        "Let the model give the same outputs for every batch: the Trainer gathers each of them from all ranks",
        f"# {w.spot(found.at)}: `{found.name}` is given only if `{found.test}`\n"
        f"# set `{found.name}` in every case, in front of that test; what it adds to the loss stays under it. Or leave it out of the gathers:\n"
        f'trainer.train(ignore_keys_for_eval=["{found.name}"])   # or trainer.evaluate(ignore_keys=["{found.name}"])',
        verify=_SEE,
    )
    return Remedy(
        (fix,), at=found.at, asks=f": the model gives `{found.name}` only if `{found.test}` ({w.spot(found.at)})"
    )


def _of_asked(asked: Frame) -> Remedy:
    """For a line that asks a framework for what one side alone does, or answers it."""
    condition, text = deciding(around(asked).conditions), line_text(asked.file, asked.line)
    does = "is each rank's own answer" if text.startswith("return ") else "may ask for that on one rank alone"
    asks = f": `{text}` ({w.place(asked)}) {does}"
    if condition is None or not condition.suspicion:
        return Remedy((), None, asked, asks)
    return Remedy((_decided_there(decisions.Decision(asked, condition, asked, "")),), condition, asked, asks)


def _of_count(d: Divergence, frame: Frame, own: Sequence[Condition]) -> Remedy:
    """For a line that runs by a count, which may lag on a rank."""
    way = d.reference_path if frame in d.reference_path else d.odd_path
    count = decisions.lagging_count(way, frame, own)
    if count is None:
        return NO_REMEDY
    c = count.condition
    why = f" It may lag since {w.spot(count.at)} runs only if `{c.text}` (line {c.line}): {count.how}."
    return Remedy((_decided_there(count),), c, why=why)


def _of_either_count(d: Divergence) -> Remedy:
    """The same where nobody is in the majority, if only one side runs by such a count."""
    ends = {p[-1] for p in (d.odd_path, d.reference_path) if p}
    found = [r for f in ends if (r := _of_count(d, f, around(f).conditions)).fixes]
    return found[0] if len(found) == 1 else NO_REMEDY


def _of_library(d: Divergence, folder: str) -> Remedy:
    """For calls that a library made below one line of the user: a mode, a metric, or a setting of the program."""
    frames = [*(d.odd_call.frames or ()), *(d.reference_call.frames or ())]
    if any(f.function == "_get_num_items_in_batch" for f in frames):
        return _of_items(folder)
    files = [f.file for f in frames if any(part in f.file for part in LIGHTNING)]
    if any("/logger_connector/" in x for x in files) and (partial := decisions.partial_log(folder)) is not None:
        return _of_partial_log(partial)
    monitor = decisions.unsynced_monitor(folder) if any("/callbacks/" in x for x in files) else None
    if monitor is not None and (by_some := decisions.logged_by_some(monitor[0])) is not None:
        return _of_partial_log(by_some)
    if monitor is not None and (fix := of_monitor(monitor)) is not None:
        at, name = monitor
        return Remedy((fix,), at=at, asks=f": `{name}` is logged without sync_dist and monitored ({w.spot(at)})")
    asks_length = any(f.function == "has_len_all_ranks" for f in frames)
    switch = decisions.loader_kinds(folder) if asks_length else decisions.switched_mode(folder)
    if switch is None:
        return NO_REMEDY
    told = switch.at if asks_length else switch.leads
    asks = f": `{line_text(told.file, told.line)}` ({w.place(told)}) may come out differently on each rank"
    return Remedy((_decided_there(switch),), None if asks_length else switch.condition, told, asks)


def _of_partial_log(partial: decisions.PartialLog) -> Remedy:
    """For what Lightning reduces over all ranks key by key, and some ranks do not log."""
    fix = edit(
        "Log the same keys on every rank, and with sync_dist: the framework goes by them",
        f"# {w.spot(partial.at)}, on every rank, also where `{partial.test}` does not hold\n{partial.whole}",
        verify=_SEE,
    )
    return Remedy((fix,), at=partial.at, asks=f": what is logged at {w.spot(partial.at)} hangs on `{partial.test}`")


def _of_items(folder: str) -> Remedy:
    """For the Trainer's gather of the number of items: it leaves it out where a batch has no labels."""
    made = decisions.made_with(
        folder, ("TrainingArguments", "Seq2SeqTrainingArguments"), "average_tokens_across_devices"
    )
    where = f" ({w.spot(made)})" if made is not None else ""
    return Remedy(
        (
            edit(
                "Keep the Trainer from counting the labels of all ranks: a batch without labels skips that count",
                f"TrainingArguments(..., average_tokens_across_devices=False){where}   # or give each batch labels: -100 where there is none",
                verify=_SEE,
            ),
        ),
        why=" The Trainer gathers the number of labels of each step from all ranks, but only where the batch has labels.",
    )


def _same_buffers(d: Divergence) -> Remedy:
    """For a DDP forward that has one more buffer to broadcast on some ranks."""
    folder = str(Path(d.odd_path[-1].file).parent) if d.odd_path else ""
    made, late = (
        decisions.made_with(folder, ("DistributedDataParallel", "DDP"), "broadcast_buffers"),
        decisions.late_buffer(folder),
    )
    first = f"# {w.spot(made)}, on every rank:\n" if made is not None else ""
    named = (
        f"\n# or fill the buffer `{late[1]}` ({w.spot(late[0])}) when the module is made, on every rank, not at the first batch that needs it"
        if late
        else ""
    )
    what = f": `{late[1]}`, which {w.spot(late[0])} fills at the first batch that needs it" if late else ""
    return Remedy(
        (
            edit(
                "Keep DDP from broadcasting the buffers: some ranks have one more of them",
                f"{first}DistributedDataParallel(..., broadcast_buffers=False){named}",
                verify=_SEE,
            ),
        ),
        why=f" In one forward {w.name_ranks(d.odd)} broadcast more buffers than the others have{what}.",
    )


def _decided_there(decision: decisions.Decision) -> Fix:
    """What all ranks decide together at a line that leads to another one."""
    c, is_asked = decision.condition, decision.at == decision.leads
    leads = "" if is_asked else f" ({w.spot(decision.leads)}: {decision.how})"
    return edit(
        "Let all ranks take this decision together",
        f"# {w.line_at(c.path, c.line)}, on every rank{leads}\n"
        f"flag = torch.tensor(float(bool({c.text})))\n"
        f"dist.all_reduce(flag, op=dist.ReduceOp.{'MAX' if is_asked else 'MIN'})\n"
        f"# and in place of `{c.text}` there: flag.item() > 0",
        verify=_SEE,
        does="decide together",
    )


def _not_in_finalizer(d: Divergence, finalizer: Frame) -> Fix:
    """For a call that an object makes when it is given up: each rank does that when it likes."""
    path = d.reference_path if finalizer in d.reference_path else d.odd_path
    above = path[path.index(finalizer) - 1]
    text = line_text(above.file, above.line)
    name = text.removeprefix("del ").strip() if text.startswith("del ") else ""
    place = w.spot(finalizer)
    advice = f"# {place}: rename `__del__` to `close`\n" + (
        f"{name}.close()   # {w.spot(above)}: on every rank, in place of `{text}`"
        if name.isidentifier()
        else "x.close()   # on every rank, at the same place of the program, where it is no longer needed"
    )
    return edit("Make no call with others in `__del__`: each rank gives its objects up when it likes", advice)


def fail_together(anew: BegunAnew) -> Fix:
    """For what is done once more where it failed: all ranks learn of the failure before the call in which the others would wait."""
    return edit(
        f"Let all ranks fail together: {anew.function}() is repeated on the failed rank alone",
        _raised_on_all(anew.before, anew.text, "RuntimeError", "CUDA out of memory. On another rank")
        + "\n# what fails in backward cannot be agreed on: keep every item small enough for it",
        verify=_SEE,
    )


def _raised_on_all(line: Frame, text: str, kind: str, message: str) -> str:
    """A statement in a `try` of its own; what it raises on one rank, all ranks raise behind it."""
    return (
        f"# {w.spot(line)}, in place of `{text}`, on every rank\n"
        f"caught = []\ntry:\n    {text}\nexcept {kind} as error:   # of what is handled above\n    caught.append(error)\n"
        "failed = torch.tensor(float(len(caught))); dist.all_reduce(failed, op=dist.ReduceOp.MAX)\n"
        f'if failed.item():\n    raise (caught or [{kind}("{message}")])[0]   # all ranks go to the handler'
    )


def of_handled(case: Case, error: RaisedError) -> tuple[tuple[str | Fix, ...], Condition | None]:
    """What helps where a rank handled an exception; and the test by which all ranks should raise it, where one does.

    To agree behind the handler helps only where no calls with others stand between what raised and the handler: else it has skipped these.
    """
    if (loss := raised_in_loss(error)) is not None:
        return (_loss_of_zero(*loss), "re-raise"), None
    skipped, shown = skipped_calls(case, error), within_first(error)
    if skipped is None or shown is not None:
        return (shown or "decide together", "re-raise"), None
    if (shown := of_item(error, case)) is not None and not (skipped.test or skipped.retries):
        return (shown, "re-raise"), None
    line, below, test = skipped.line, skipped.below, skipped.test
    others = [c for c in surroundings(line.file, line.line).conditions if test is None or c != test]
    if skipped.retries and below is not None:
        return (_try_less(line, below, skipped.retries), "re-raise"), None
    kind, text = error.type.rpartition(".")[2], line_text(line.file, line.line)
    is_open = any(c.suspicion > OPEN for c in others) or skipped.calls or _OF_DDP in error.message
    if is_open or not (test or _is_whole(text)):
        return ("re-raise",), None
    advice = (
        f"# {w.line_at(line.file, test.line)}, in place of `if {test.text}:`, on every rank\n"
        f"flag = torch.tensor(float(bool({test.text}))); dist.all_reduce(flag, op=dist.ReduceOp.MAX)\nif flag.item():"
        if test is not None
        else _raised_on_all(line, text, kind, on_another_rank(error))
    )
    title = "Let all ranks raise it together: then all of them go to the handler"
    return (edit(title, advice, verify=_SEE, does="decide together"), "re-raise"), test


def _loss_of_zero(line: Frame, raises: str, output: str) -> Fix:
    """For what the loss function of a pipeline raises: it leaves the step between two transfers."""
    return edit(
        "Raise nothing in the loss of a pipeline: the other stages wait for the rest of the step",
        f"# {w.spot(line)}, in place of `{raises}`\n"
        f"return {output}.sum() * 0.0   # counts nothing, and has a gradient: so the stage makes the transfers that the others wait for",
        verify=_SEE,
    )


def _is_whole(text: str) -> bool:
    """Whether a line is a statement of its own."""
    try:
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError):
        return False


def _try_less(line: Frame, below: Frame, retries: str) -> Fix:
    """For a decorator that calls a function once more in which other ranks wait."""
    outer, inner = (
        w.spot(replace(f, line=n.lineno if (n := function_at(f.file, f.line)) else f.line)) for f in (line, below)
    )
    return edit(
        f"Retry {below.function}() alone: in {line.function}() the other ranks wait",
        f"# {outer}: take `{retries}` off {line.function}(), which makes calls with the other ranks\n"
        f"{retries}   # over {below.function}() instead, {inner}: it makes none, so one rank can call it once more",
        verify=_SEE,
    )


def of_any_sender(at: Frame) -> Fix | None:
    """For messages of several parts that are taken from whoever sends first: the parts of two senders may be mixed."""
    found = decisions.received_of_anybody(at.file, at.line)
    if found is None:
        return None
    first, text, last = found
    return edit(
        "Receive all parts of a message from one sender: two may be on their way, and any of them may come first",
        f"# {w.line_at(at.file, first)}\nsender = {text}\n# and line {last}, with what it receives now\ndist.recv(..., src=sender)",
        verify=CLEAN,
    )


def one_width(folder: str) -> Fix | None:
    """For a pipeline whose stages take the shapes of their buffers from the first batch."""
    stage = decisions.made_with(folder, ("PipelineStage",), "input_args")
    if stage is None:
        return None
    return edit(
        "Give the pipeline batches of one width: its stages keep the shapes of the first one",
        f"# {w.spot(stage)}: PipelineStage makes its buffers for the first batch, and a later one of another width does not fit\n"
        "batch = F.pad(batch, (0, widest - batch.shape[1]))   # every batch, on every rank; widest: of all batches, the same in each step\n"
        "# or make the stage and its schedule anew wherever the width changes",
        verify=CLEAN,
    )


def make_for_all(case: Case, error: RaisedError, ranks: Sequence[int]) -> Fix | None:
    """For a module that a rank wraps for all ranks where it alone needs one: each rank makes what any of them needs."""
    table = case.calls
    last = {r: table.rank_rows(r) for r in case.ranks if r not in ranks}
    paths = [user_path(table.call(rows.stop - 1).frames) for rows in last.values() if rows.stop > rows.start]
    found = decisions.made_where_needed(error.frames, paths)
    if found is None:
        return None
    whole = found.whole.replace("\n", "\n    ")
    return edit(
        f"Let every rank make what one needs: `{found.makes}` wraps a module, which all ranks do together",
        f"# {w.spot(found.at)}, in place of the `if`, on every rank; each comes here once in a round\n"
        f"needed = [None] * dist.get_world_size(); dist.all_gather_object(needed, {found.key}); mine = {found.key}\n"
        f"for {found.key} in sorted(set(needed)):\n    {whole}\n{found.key} = mine",
        verify=CLEAN,
    )
