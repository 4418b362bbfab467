"""First fixes of a loop that ended on some ranks before its data did: the source is mended, or nothing is claimed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from textwrap import indent

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.framework_loops import MadeLoader
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.failures import are_whole_nodes
from unhang.analyze.program import early_ends
from unhang.analyze.program.callpath import user_path
from unhang.analyze.program.rounds import LeftLoop, goes_through
from unhang.analyze.program.sets import loop_over_set
from unhang.analyze.program.source import surroundings
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Fix, Frame
from unhang.model.findings import EARLIER, SOURCE
from unhang.rules import wording as w
from unhang.rules.base import CLEAN, Found, edit
from unhang.rules.start_repairs import resumed_apart


def ended_early(s: Situation, loop: LeftLoop, found: Found) -> Found:
    """The same loop with what ended it, as the source of what it goes over shows; and whether it made as many rounds on all ranks before."""
    if (resumed := resumed_apart(found, loop.head)) is not found:
        return resumed
    at, fix = _source_of_end(s, loop)
    if fix is not None and at is not None:
        return replace(found, fixes=(fix,), location=at, evidence=(*found.evidence, *w.code_line(at, SOURCE)))
    if not _was_even(s, loop):
        return found
    told = EvidenceLine(EARLIER, "all ranks made as many rounds of this loop, each time before", loop.header)
    fixes = ("find the end", "cut")
    return replace(found, fixes=fixes, evidence=(*found.evidence, told))


def _source_of_end(s: Situation, loop: LeftLoop) -> tuple[Frame | None, Fix | None]:
    path, header = loop.frame.file, loop.header
    if (stop := early_ends.leaked_stop(path, header)) is not None:
        return stop.at, _read_alike(stop)
    if (place := early_ends.shared_place(path, header)) is not None:
        return place.at, _own_place(place)
    if (some := early_ends.set_on_some(_script_of(s, loop), path, header)) is not None:
        return some.at, _on_every_rank(some)
    if (salted := early_ends.salted_hash(_script_of(s, loop))) is not None:
        return salted.at, one_hash(salted)
    days = early_ends.local_days(path, header) if are_whole_nodes(s.case, loop.leavers) else None
    return (days.at, _one_zone(days)) if days is not None else (None, None)


def _script_of(s: Situation, loop: LeftLoop) -> str:
    """The file of the outermost line of the program on the way to the loop."""
    ways = (stack_path(s.case, r) for r in (*loop.stayers, *loop.leavers))
    return next((way[0].file for way in ways if way), loop.frame.file)


def _was_even(s: Situation, loop: LeftLoop) -> bool:
    """Whether the ranks have been through the whole loop before, and came out of it together: what differs now is new."""
    around = surroundings(loop.frame.file, loop.frame.line).loops
    whole, calls = next((x for x in around if x.header == loop.header), None), s.case.calls
    if whole is None:
        return False
    rows = calls.rank_rows(loop.leavers[0])
    seen: dict[int, bool] = {}
    within: list[bool] = []
    for number in (int(n) for n in calls["frames"][rows] if n >= 0):
        if number not in seen:
            seen[number] = goes_through(user_path(calls.stacks[number]), loop.frame, whole)
        within.append(seen[number])
    return sum(a and not b for a, b in pairwise(within)) > 1


def _on_every_rank(some: early_ends.OfSome) -> Fix:
    """For a number that some ranks alone read, with what was read beside it."""
    with_rest = f"if {some.rest}:" if some.rest else "no condition"
    return edit(
        f"Let every rank set `{some.name}`, and what is read with it: line {some.sets} runs only if `{some.test}`",
        f"# {w.spot(some.at)}, in place of `if {some.test}:`, on every rank: all go on from one place, with the same weights\n{with_rest}\n"
        "# where the file is on one machine alone: read it there, and torch.distributed.broadcast_object_list the rest of it",
        verify=CLEAN,
    )


def one_hash(salted: early_ends.Salted) -> Fix:
    """For what is shared out by a number that is another one in each process."""
    return edit(
        f"Share it out by a number that is the same in every process: Python salts `{salted.text}` of a text anew in each",
        f"# {w.spot(salted.at)}, in place of `{salted.text}`; import zlib\nzlib.crc32(repr({salted.of}).encode())\n# or the same PYTHONHASHSEED in the environment of all ranks",
        verify=CLEAN,
    )


def _read_alike(stop: early_ends.LeakedStop) -> Fix:
    return edit(
        f"Do not let `{stop.asks}` end the loop: in what map() calls, its StopIteration is taken for the end of the data",
        f"# {w.spot(stop.made)}, in place of `{stop.text}`\nread_alike({stop.reads}, {stop.items})\n"
        "# above that function; all ranks have as many items there\n"
        "def read_alike(read, items):\n"
        "    for item in items:\n"
        "        try:\n            got = read(item)\n"
        f"        except StopIteration:   # {w.spot(stop.at)}: an item that ends too early; name it in the log\n            got = None\n"
        "        bad = torch.tensor(float(got is None))\n"
        "        dist.all_reduce(bad, op=dist.ReduceOp.MAX)   # all ranks leave it out\n"
        "        if not bad.item():\n            yield got",
        verify=CLEAN,
    )


def _own_place(place: early_ends.SharedPlace) -> Fix:
    return edit(
        f"Keep the state of `{place.what}` for each rank: Accelerate saves that of the main process alone, and loads it on all",
        f"# {w.spot(place.saves)}, in place of state_dict() and load_state_dict(), which every rank calls; import torch.distributed as dist\n"
        "def state_dict(self):\n"
        "    states = [None] * dist.get_world_size()\n"
        f"    dist.all_gather_object(states, {place.state})\n"
        '    return {"ranks": states}\n'
        f"def load_state_dict(self, {place.given}):\n"
        f'    {place.given} = {place.given}["ranks"][dist.get_rank()]\n' + indent(place.loads, "    "),
        verify=CLEAN,
    )


def _one_zone(days: early_ends.LocalDays) -> Fix:
    return edit(
        f"Read the time in one zone: `{days.text}` is in that of the machine, and the nodes made other numbers of rounds",
        f"# {w.spot(days.at)}, in place of `{days.text}`\n{days.safe}\n# or the same TZ in the environment of all nodes",
        verify=CLEAN,
    )


def told_by_first(frame: Frame | None) -> Fix | None:
    """For a round that the first rank leaves by a test under its own condition, in front of the line in which the others wait for it: it tells them."""
    left = early_ends.left_by_first(frame) if frame is not None else None
    if left is None:
        return None
    body = indent(left.body, "    ")
    return edit(
        f"Let the first rank tell the others that it leaves: `if {left.test}` stands under `if {left.gate}`, and leads past the line in which they wait",
        f"# {w.line_at(left.at.file, left.gate_line)}, in front of `if {left.gate}:`, on every rank\nleaves = [False]\n"
        f"# {w.spot(left.at)}, in place of `if {left.test}:` and its block\nleaves = [bool({left.test})]\n"
        f"# behind the block of `if {left.gate}:`, on every rank; import torch.distributed as dist\n"
        f"dist.broadcast_object_list(leaves, src=0)\nif leaves[0]:\n{body}",
        verify=CLEAN,
    )


def in_order_of_set(s: Situation, d: Divergence) -> Found | None:
    """All are in one loop over a set: who is through with its member first had another one than the others."""
    over = loop_over_set(d.odd_path)
    if (
        over is None
        or over != loop_over_set(d.reference_path)
        or s.case.job.environment.get("PYTHONHASHSEED", "random") != "random"
    ):
        return None
    head, what = over
    words = {
        "over": what, "loop": w.place(head), "odd": w.name_ranks(d.odd), "others": w.name_ranks(d.reference),
        "mine": w.name_call(d.odd_call), "theirs": w.name_call(d.reference_call),
    }  # fmt: skip
    lines = (*w.both_sides(d), *w.code_line(head, "set"))
    return Found(0.9, (), lines, words, "set", ("sorted",), **w.at_fork(d, head), cause="code-divergence")


def as_many(made: MadeLoader) -> Fix:
    """For a loader of the program's that a framework asks for."""
    return edit(
        "Give each rank as many items as the rank with the fewest, each time the loader is made",
        f"# in front of the statement of {w.spot(made.at)}, on every rank\n"
        f"data = {made.data}\n"
        "n = torch.tensor(len(data)); torch.distributed.all_reduce(n, op=torch.distributed.ReduceOp.MIN)\n"
        f"# and in it, in place of `{made.data}`: torch.utils.data.Subset(data, range(int(n)))",
        verify=CLEAN,
    )


def dealt_out_by_trainer(own: Frame) -> Fix:
    """For a Trainer that makes a loader itself, and so gets as many batches as each rank happens to have."""
    return edit(
        "Let the Trainer deal out the items: give its loader the whole data set, and let the accelerator prepare it",
        f"# {w.spot(own)}, in {own.function}(): no share of the rank's own; and in place of the DataLoader that it returns\n"
        "return self.accelerator.prepare(DataLoader(dataset, ...))   # deals out the whole set, and fills up the last round",
        verify=CLEAN,
    )
