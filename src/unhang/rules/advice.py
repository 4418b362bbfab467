"""Fixes that several rules give, among them that for a line with a collective that does not run on every rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from unhang.analyze.calls.framework_settings import SkippedPart, made_anew, skipped_part
from unhang.analyze.program.decisions import asked_by, called_with, unsynced_metric
from unhang.analyze.program.early_ends import operand_behind
from unhang.analyze.program.may_differ import is_drawn
from unhang.analyze.program.sides import ByCondition
from unhang.analyze.program.source import Condition, frame_at, handles_signal, nearest, nodes_around
from unhang.analyze.program.trees import line_text
from unhang.model import Fix, Frame, Gate
from unhang.model.findings import LOOK, NO_HELP
from unhang.rules import wording as w
from unhang.rules.base import AGAIN, CLEAN, edit
from unhang.rules.early_ends import told_by_first
from unhang.rules.framework_advice import of_monitor, read_before
from unhang.rules.graph_repairs import zero_loss
from unhang.rules.start_repairs import in_eval_mode, of_module

SEE_IT = Fix(
    "See the calls of every rank at the next stop",
    command=AGAIN,
    verify="the report names the rank, its line, and the call that it should have made",
    undo="nothing is changed",
    kind=LOOK,
)
RECORD_IT = Fix(
    "Or keep torch's own record, where the job cannot be started under unhang",
    setting="TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/rank_ "
    "(torch < 2.10: TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
    verify="unhang diagnose /shared/dumps",
    undo="unset the variables",
    kind=LOOK,
)
NO_LONGER_TIMEOUT = Fix(
    "Does not help: a longer timeout",
    verify="public jobs with this cause failed again after 1.5, 2, 5 and 12 hours",
    undo="nothing is changed",
)
EVERY_RANK_CALLS = edit(
    "Make the call on every rank, and only the writing on one",
    "state = gather_full_state(model)      # every rank\nif rank == 0:\n    write(state)                      # one rank",
    verify=CLEAN,
    does="every rank calls",
)
EQUAL_BATCHES = edit(
    "Give every rank the same number of batches, or end together",
    "DistributedSampler(..., drop_last=True); with model.join(): ...   # or decide together: all_reduce(MIN) of 'has data'",
    verify="print the number of batches of each rank: equal",
)
OF_THE_PROGRAM, OF_THE_DATA = ((first, SEE_IT, NO_LONGER_TIMEOUT) for first in (EVERY_RANK_CALLS, EQUAL_BATCHES))
PAD = edit(
    "Pad to the largest, or gather with sizes",
    "n = torch.tensor([x.shape[0]]); dist.all_reduce(n, op=MAX); x = F.pad(x, ...)   # then cut after the gather",
    verify=CLEAN,
)


_LONGEST = 80


def fixes_of(
    frame: Frame | None, condition: Condition | None, who: str, made: Sequence[Frame] = (), apart: Fix | None = None
) -> tuple[Fix, ...]:
    """How the ranks come to the same calls. `condition`: what decides whether the frame's line runs; `who`: the odd ranks.

    `made`: the way to a call, innermost first: that which they left out, on a rank that made it, or that which they made. `apart`: what helps
    where no condition decides.
    """
    remedies: tuple[Fix, ...]
    gate = gate_of(condition)
    if frame is not None and handles_signal(frame):
        remedies = (_only_a_flag(frame),)
    elif condition is None:
        own = _own_backward(made)
        shown = apart or (told_by_first(frame) if who == "rank 0" else None)
        remedies = (shown or (_find_out(frame, who) if own is None else _kept_in_graph(own, who)),)
    elif gate is not None and (gate.by_rank or _OF_A_PART.search(gate.text)):
        read = read_before(frame, condition, _called_by(frame, made)) if frame is not None else None
        alone = read or in_eval_mode(frame, made)
        remedies = (alone,) if alone else _for_every_rank(frame, condition)
    else:
        shown = _shown(frame, condition, made) if frame is not None else None
        remedies = (shown or decided_together(frame, condition),)
    return (*remedies, LONGER_TIMEOUT)


def _shown(frame: Frame, condition: Condition, made: Sequence[Frame]) -> Fix | None:
    """A change that the program's own lines show, in place of a decision that all ranks take together."""
    own = of_module(condition) or _blank_input(frame, condition, made) or _synced_each_step(frame, made)
    return own or of_monitor(unsynced_metric(frame, condition.test))


def _blank_input(frame: Frame, condition: Condition, made: Sequence[Frame]) -> Fix | None:
    """For a module whose shards are gathered in its forward, and that only runs where a rank has something for it."""
    is_sharded = any("/fsdp/" in f.file for f in (made[: made.index(frame)] if frame in made else made))
    module, given = called_with(frame.file, frame.line, condition.test) if is_sharded else ("", "")
    if not module:
        return None
    return edit(
        f"Run `{module}` on every rank: where a rank has nothing for it, with a blank input that counts zero",
        f"# {_where(frame)}: its forward and its backward make calls with the other ranks. In place of `{module}({given})` under `{condition.text}`, always\n"
        f"has_some = {condition.text}\n"
        f"{module}({given} if has_some else blank) * float(has_some)   # blank: torch.zeros of the shape that it has elsewhere, for one item",
    )


def on_every_way(own: Frame, gate: Condition, who: str, theirs: Frame | None) -> Fix:
    """For a call that these ranks make on a line of their own, while the others make it on theirs: what leads past that line has to make it, too."""
    call = line_text(own.file, own.line)
    return edit(
        f"Let {who} make the call of {_where(own)} on every way out, also where `{gate.text}` does not hold: the others wait for it at {_where(theirs)}",
        f"# {w.line_at(gate.path, gate.line)}: where it leads past {_where(own)}, on {who}, in front of that way out\n{call}\n"
        f"# or, for all ranks, one call in place of the two: at the place where {_where(theirs)} is",
        verify=CLEAN,
    )


def _synced_each_step(frame: Frame, made: Sequence[Frame]) -> Fix | None:
    """For a metric that brings its states together each time that a rank calls it: so it is asked for only where all ranks call it alike."""
    is_metric = any("/torchmetrics/" in f.file for f in made)
    asked = asked_by(str(Path(frame.file).parent), "dist_sync_on_step") if is_metric else None
    if asked is None:
        return None
    return edit(
        "Let the metric bring the ranks together in compute() alone, not each time that a rank calls it",
        f"# {w.spot(asked)}: take out dist_sync_on_step=True. What a call of the metric returns is then this rank's own; compute() is that of all ranks, as before",
    )


def look_inside(
    frame: Frame | None, inside: tuple[Frame, Frame], who: str, is_skipped: bool, asked: Condition | None
) -> Fix:
    """The same where all ranks run the frame's line, and a library went two ways below it. `inside`: where, on `who` and on the others; `asked`: what the library asks there."""
    mine, theirs = (w.place(f) for f in inside)
    did = f"the others made the call of {theirs}, {who} went on to {mine}"
    why = "a setting, a callback or a value that the library asks for there is not the same"
    if asked is not None and len(asked.text) <= 2 * _LONGEST and "\n" not in asked.text:
        why += f"; one of the two calls runs only if `{asked.text}` ({w.line_at(asked.path, asked.line)})"
    return edit(
        f"Find what is not the same on every rank below {_where(frame)}",
        f"{did if is_skipped else f'{who} went to {mine}, the others to {theirs}'}: {why}",
        kind=LOOK,
    )


def say_the_condition(by: ByCondition) -> str:
    """Why a condition on the rank tells who is odd."""
    who, condition = w.name_ranks(by.odd), by.condition
    outcome = f"only {who} may fail it" if by.is_left_out else f"only {who} {w.verb(by.odd, 'passes', 'pass')} it"
    return f"The line runs only if {condition.text} (line {condition.line}), and that depends on the rank: {outcome}."


def deciding(conditions: Iterable[Condition]) -> Condition | None:
    """The condition that most likely comes out differently on the ranks: the innermost on the rank, else on data; not whether there is a group at all, or anybody else in it."""
    open_to = [c for c in conditions if c.depends_on_rank or not _IS_DISTRIBUTED.fullmatch(c.text)]
    return max(reversed(open_to), key=lambda c: (c.depends_on_rank, c.suspicion), default=None)


def at_test(frame: Frame, condition: Condition | None) -> Frame:
    """Where the ways part: at the test that decides, where that asks for data; at the line itself, where it asks for the rank."""
    of_data = condition is not None and not condition.depends_on_rank
    return frame_at(condition.path, condition.line) if condition is not None and of_data else frame


def gate_of(condition: Condition | None) -> Gate | None:
    """The condition as a finding names it."""
    c = condition
    return None if c is None else Gate(c.path, c.line, c.text, c.depends_on_rank, c.only_on_rank_zero)


def said_plainly(
    condition: Condition | None,
    frame: Frame | None,
    odd: Sequence[int],
    others: Sequence[int],
    op: str,
    is_skipped: bool,
) -> tuple[str, dict[str, object]]:
    """The variant of a card that names the condition, and its words; nothing where there is no condition to name.

    `odd`: the ranks that made the call of the frame's line, or skipped it; `op`: that call.
    """
    if condition is None or frame is None or "\n" in condition.text:
        return "", {}
    text = condition.text if len(condition.text) <= _LONGEST else f"{condition.text[:_LONGEST]} ..."
    when = f"on rank 0 (`if {text}`)" if condition.only_on_rank_zero and not is_skipped else f"if `{text}`"
    alone = "alone" if len(odd) == 1 else f"without {w.name_ranks(others)}"
    words: dict[str, object] = {"op": op, "alone": alone, "spot": w.spot(frame), "when": when}
    return "skipped" if is_skipped else "alone", words


def decided_together(frame: Frame | None, condition: Condition) -> Fix:
    """Every rank takes the branch that all can take."""
    text = condition.text
    is_short = len(text) <= _LONGEST and "\n" not in text
    if is_drawn(condition.test):
        return edit(
            "Let all ranks go by one draw: the line runs on all of them or on none",
            f"# {_where(frame)} runs only if this holds, and each rank draws for itself\n"
            f"box = [bool({text if is_short else 'holds'})]\n"
            "dist.broadcast_object_list(box, src=0)   # on every rank\nif box[0]: ...",
            verify=f"{AGAIN}: all ranks pass this line",
            does="decide together",
        )
    asked = text.replace("is not None", "") if text.startswith("not (") else text
    has_something = bool(_HAS_SOMETHING.search(asked)) and not _IS_BAD.search(text)
    if has_something and frame is not None and (shown := _sum_and_count(frame, condition) or zero_loss(frame, text)):
        return shown
    way, then = (
        ("MAX", "also on a rank that has nothing: it gives an empty tensor, or zeros")
        if has_something
        else ("MIN", "the same on every rank")
    )
    return edit(
        "Let all ranks take the decision together: the line runs on all of them "
        + ("as soon as one has something for it" if has_something else "or on none"),
        f"# {_where(frame)} runs only if this holds; agree on it over all ranks before:\n"
        + ("" if is_short else f"holds = {text}\n")
        + f"flag = torch.tensor(float(bool({text if is_short else 'holds'})))\n"
        f"dist.all_reduce(flag, op=dist.ReduceOp.{way})   # on every rank\n"
        f"if flag.item() > 0: ...   # {then}",
        verify=f"{AGAIN}: all ranks pass this line",
        does="decide together",
    )


def _sum_and_count(frame: Frame, condition: Condition) -> Fix | None:
    """For a mean that only ranks with some items exchange: each gives sum and count, and those without give zero."""
    gate = nearest(condition.path, condition.line, ast.If)
    calls = [c for s in (gate.body if gate is not None else ()) for c in ast.walk(s) if isinstance(c, ast.Call)]
    means = {
        ast.unparse(c.func.value)
        for c in calls
        if isinstance(c.func, ast.Attribute) and c.func.attr == "mean" and not c.args
    }
    if len(means) != 1 or not any(ast.unparse(c.func).endswith("all_reduce") for c in calls):
        return None
    name = means.pop()
    return edit(
        f"Let every rank give the sum and the count of `{name}`, and divide then: a rank that has none gives zeros",
        f"# {_where(frame)}: in front of `if {condition.text}`, on every rank; `{name}` may have no items\n"
        f"both = torch.stack([{name}.sum(), {name}.new_tensor(float({name}.numel()))])\n"
        "dist.all_reduce(both)\n"
        "mean = (both[0] / both[1].clamp(min=1)).item()   # of all ranks: no division by their number any more\n"
        f"# and in place of the block of `if {condition.text}`, what it does with the mean, if both[1] > 0",
    )


# What asks whether a rank has something to give; and what asks whether it may be used.
_HAS_SOMETHING = re.compile(
    r"\bnumel\b|\blen\(|\.shape\b|\.size\(|\bcount\b|\.any\(\)|\bis not None\b|^(?:not )*[\w.]+$"
)
_IS_BAD = re.compile(r"nan|inf\b|isinf|finite|\bbad|overflow|corrupt|invalid|error|fail|broken", re.IGNORECASE)
_IS_DISTRIBUTED = re.compile(
    r"(?:\w+\.)*(?:(?:is_initialized|is_available)\(\)|(?:get_world_size\(\)|world_size) *[<>!=]=? *1)"
)
# Of an object of the program, which some ranks never have.
_OF_A_PART = re.compile(r"\bself\.[\w.]+ is (?:not )?None\b")
_ASKED_FOR = re.compile(r"([\w.]+) is not None")


def _for_every_rank(frame: Frame | None, condition: Condition) -> tuple[Fix, Fix]:
    where, asked = _where(frame), _ASKED_FOR.search(condition.text)
    if asked is not None and frame is not None and condition.only_on_rank_zero:
        # What writes the log on rank 0, say: the call itself does not use it.
        text = line_text(frame.file, frame.line)
        asked = asked if not text or re.search(rf"\b{re.escape(asked[1])}\b", text) else None
    first = f"give every rank its own {asked[1]}, which only some have now; then, at " if asked else ""
    return (
        edit(
            "Let every rank make the call",
            f"{first}{where}: take the call out of `{condition.text}` (line {condition.line}), so that every rank makes it; "
            "what one rank alone does with the result (print, save) stays under the condition",
            does="every rank calls",
        ),
        edit("Or let no rank make it", f"{where}: leave the call out, if nothing needs its result", verify=AGAIN),
    )


def call_first(frame: Frame | None, function: str = "") -> Fix | None:
    """For a call behind `and` or `or`, which some ranks leave out where what stands before decides: it is made first, on every rank. `function`: what is called."""
    chain = nodes_around(frame.file, frame.line) if frame is not None else ()
    around = next((n for n in reversed(chain) if isinstance(n, ast.Return | ast.Assign | ast.Expr | ast.If)), None)
    whole = around.test if isinstance(around, ast.If) else around.value if around is not None else None
    parts = [n for n in ast.walk(whole) if isinstance(n, ast.BoolOp)] if whole is not None else []
    behind = next((found for n in parts if (found := operand_behind(n, function)) is not None), None)
    if frame is None or around is None or behind is None or whole is None:
        return None
    call, line = ast.unparse(behind), ast.unparse(around).splitlines()[0]
    first, _, rest = line.rpartition(call)
    return edit(
        f"Make the call on every rank: `{call}` is left out where what stands before it decides",
        f"# {_where(frame)}, in place of `{line}`, on every rank\nasked = {call}\n{first}asked{rest}",
    )


def _only_a_flag(frame: Frame) -> Fix:
    return edit(
        "Make no call with others in a signal handler: it runs at any line, and not on every rank",
        f"def {frame.function}(signum, frame):\n    global wanted; wanted = True   # nothing else\n"
        "# at the end of each step, on every rank:\n"
        "flag = torch.tensor(float(wanted)); dist.all_reduce(flag, op=dist.ReduceOp.MAX)\n"
        "if flag.item(): ...   # what the handler does now: on all ranks, between two steps",
        does="after the round",
    )


def _called_by(frame: Frame, made: Sequence[Frame]) -> Frame | None:
    """The frame of what a line called, on the way to a call."""
    at = made.index(frame) if frame in made else 0
    return made[at - 1] if at and not made[at - 1].is_user else None


def _own_backward(made: Sequence[Frame]) -> Frame | None:
    """The line of the program's own autograd function, in the backward of which a call was made."""
    is_autograd = any(f.file.endswith("torch/autograd/function.py") for f in made)
    return next((f for f in made if is_autograd and f.is_user and f.function == "backward"), None)


def _kept_in_graph(backward: Frame, who: str) -> Fix:
    anew = made_anew(backward.file)
    why = f"{_where(backward)}: this backward runs only where its result needs a gradient"
    return edit(
        "Keep the exchange in the graph on every rank",
        f"{why}. On {who} a tensor had left the graph before (an empty batch that is made anew, detach(), no_grad()): "
        "let it take the same way on every rank, also where it has no rows"
        if anew is None
        else f"{w.line_at(anew.path, anew.line)}: take out `if {anew.test}: return {anew.made}`. The lines below it take a tensor without rows, too; "
        f"what they give stays in the graph, so that every rank makes the exchange in backward\n# {why}, and a tensor that is made anew needs none",
    )


def _find_out(frame: Frame | None, who: str) -> Fix:
    return edit(
        f"Find what led {who} a different way from the other ranks",
        f"{_where(frame)}: print there what decides, on every rank; then let all of them go the same way",
        kind=LOOK,
    )


def part_left_out(frame: Frame | None, names: Sequence[str] = ()) -> SkippedPart | None:
    """The branch that leaves parameters out of some steps, as the files beside a line show it. `names`: as the model names them."""
    within = tuple(sorted({part for name in names for part in name.split(".") if not part.isdigit()}))
    return skipped_part(str(Path(frame.file).parent), within) if frame is not None else None


def of_skipped_part(frame: Frame | None, names: Sequence[str] = ()) -> tuple[Fix, ...]:
    """What lets all parameters take part in each step; nothing where the program does not show it. `names`: those that did not, as the model names them."""
    folder = str(Path(frame.file).parent) if frame is not None else ""
    if (static := asked_by(folder, "static_graph")) is not None:
        return (_no_static_graph(static, asked_by(folder, "use_reentrant")),)
    part = part_left_out(frame, names)
    steps = zip(*(n.split(".")[:-1] for n in names), strict=False)
    prefix = ".".join(step[0] for step in takewhile(lambda step: len(set(step)) == 1, steps))
    if part is None and not prefix:
        return ()
    whole = "getattr(model, 'module', model)"  # an evaluation may be given the module itself
    zero = f"0.0 * sum(p.sum() for p in {whole}.get_submodule({prefix!r}).parameters())"
    where, advice = (
        "",
        f"# behind the forward of the DDP model, in front of backward(), on every rank\nloss = loss + {zero}",
    )
    if part is not None:
        value = part.value or "out"
        where = f": {w.spot(part.at)} leaves `{part.parts[0]}` out of some steps"
        advice = (
            f"# {w.spot(part.at)}: where `{part.test}` does not hold, they get no gradient on that rank\n"
            f"if {part.test}: ...   # as before\nelse: {value} = {value} + {part.zero}"
        )
    return (edit(f"Let every parameter take part in each step, on every rank{where}", advice, verify=CLEAN),)


def _no_static_graph(static: Frame, reentrant: Frame | None) -> Fix:
    more = (
        f"\n# {w.spot(reentrant)}: use_reentrant=False; a reentrant checkpoint needs that promise"
        if reentrant is not None
        else ""
    )
    return edit(
        "Do not promise DDP a static graph: the graph is not the same in each step",
        f"# {w.spot(static)}: take out static_graph{more}\n# if a step leaves parameters out altogether: find_unused_parameters=True there",
        verify=CLEAN,
    )


def _where(frame: Frame | None) -> str:
    return w.spot(frame) if frame else "the call"


LONGER_TIMEOUT = Fix(
    f"{NO_HELP}a longer timeout, or other NCCL settings", verify="the ranks come to other calls there with any timeout"
)
