"""Rule: the ranks' programs part at a collective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from unhang.analyze.align import calls_at
from unhang.analyze.callpath import Path, user_path
from unhang.analyze.divergence import Divergence
from unhang.analyze.overtaking import line_passed
from unhang.analyze.shifted import shift_at
from unhang.analyze.situation import Situation
from unhang.analyze.source import calls_only_on_rank_zero, line_text, surroundings
from unhang.analyze.variables import differing
from unhang.model import EvidenceLine, Finding, Fix, Frame, ThreadStack
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.collective.order import functions_called, is_dispatch_race, is_of_size_alone, is_thread_race
from unhang.rules.collective.swallowed_exception import swallowed_by
from unhang.rules.collective.uneven_inputs import exhausted_by
from unhang.rules.examples import make_case

_FORWARD = ("_pre_forward", "_sync_buffers", "forward")
_STEP = ["all_reduce[8]@main:10", "all_reduce[1]@main:12"]
_OPEN = "all_reduce[8]@main:10 !"
_VISIT = ["all_reduce[7]@main:4", "all_reduce[3]@main:4", "all_reduce[1]@main:5"]
_STEPS = """\
def main():
    for batch in loader:
        gather(model)
        for parameter in model:
            reduce(parameter)
"""
_ROUNDS = ["all_gather[4]@main:3", *(f"all_reduce[{size}]@main:5" for size in (2, 7, 2))] * 3
_ONE_MORE = {r: [*_ROUNDS, "all_reduce[2]@main:5 !" if r == 1 else "all_gather[4]@main:3 !"] for r in range(4)}
_SCATTERS = (
    Frame("/site-packages/torch/distributed/distributed_c10d.py", 4936, "reduce_scatter_tensor"),
    Frame("/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper"),
    Frame("train.py", 14, "main"),
)
_LAYERS = ["all_reduce[2]@main:9", "all_reduce[7]@main:9", "all_reduce[3]@main:9", "all_reduce[5]@main:9"]


class RankDependentCollective(Rule):
    """A rank takes another branch than its peers around a collective.

    What it detects:
        At the same position of a group the ranks issued different calls, or the same call from another line, and never met
        again. The majority is the reference; the first difference counts, not the call that is stuck.

    Why it hangs:
        A collective completes when every member has issued it. A rank that issues another one in its place, or leaves one out,
        leaves the others waiting; from then on its calls pair with the wrong partners.

    How to confirm:
        Look at the two lines that the finding shows: a condition between them comes out differently on the ranks.

    How to fix:
        Let every rank issue the call: move it out of the condition, or let all ranks take the decision together (all-reduce the
        condition first).

    Sources:
        PyTorch documentation, torch.distributed: all processes of a group must call a collective in the same order.
    """

    id = "rank-dependent-collective"
    cause = "code-divergence"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(make_case({0: [*_STEP, "barrier@main:11 !"], **{r: [*_STEP, _OPEN] for r in (1, 2, 3)}}), (0,), 11),
        Fires(
            make_case(
                {
                    2: [*_STEP, *_STEP, "all_reduce[1]@main:12 !"],
                    **{r: [*_STEP, *_STEP, _OPEN] for r in (0, 1, 3)},
                }
            ),
            (2,),
            10,
        ),
        Fires(
            make_case(
                {
                    r: [*_LAYERS, *_LAYERS, "all_reduce[2]@main:9", f"all_reduce[{7 if r else 3}]@main:9 !"]
                    for r in range(4)
                }
            ),
            (0,),
            9,
        ),
        Fires(
            make_case(
                {0: ["barrier@main:3 !"], 1: ["barrier@main:3 !"], 2: ["all_gather[1]@main:4>train:9 !"]},
                world=3,
                source="def main():\n    init()\n    barrier()\n    train()\n",
            ),
            (2,),
            3,
        ),
        Fires(
            make_case(
                {
                    2: [*_VISIT, *_VISIT, _VISIT[0], "all_reduce[1]@main:5 !"],
                    **{r: [*_VISIT, *_VISIT, _VISIT[0], "all_reduce[3]@main:4 !"] for r in range(2)},
                },
                world=3,
                source="def main():\n    step()\n    for parameter in model:\n        reduce(parameter)\n    reduce(count)\n",
            ),
            (2,),
            4,
        ),
        Fires(
            make_case(
                {
                    r: [*_VISIT, *(f"all_reduce[{n}]@main:4 !" for n in ((3, 7, 5) if r == 1 else (7, 3, 5)))]
                    for r in range(4)
                }
            ),
            (1,),
            4,
        ),
        Fires(make_case(_ONE_MORE, source=_STEPS), (1,), 5),
        Fires(
            make_case(_ONE_MORE, source=_STEPS.replace("gather(model)", "gather(model) if finite(loss) else 0")),
            (1,),
            3,
        ),
        Fires(
            make_case(
                {1: [*_STEP, "all_reduce[1] !"], **{r: [*_STEP, "all_reduce[32]@main:14>~comm !"] for r in (0, 2, 3)}},
                stacks={1: ThreadStack("main", _SCATTERS, is_main=True)},
            ),
            (1,),
            14,
        ),
        Quiet(make_case({r: [*_STEP, _OPEN] for r in range(3)} | {3: _STEP}), "a rank that is late has not diverged"),
        Quiet(
            make_case(
                {
                    0: ["broadcast[4]@main:5", *_STEP, _OPEN],
                    **{r: ["broadcast[4]@main:7", *_STEP, _OPEN] for r in (1, 2, 3)},
                }
            ),
            "source and receivers of a broadcast may stand on different lines",
        ),
        Quiet(make_case(dict.fromkeys(range(4), _STEP), hang=None, exit_code=0), "a healthy job"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first divergence that no more specific rule explains."""
        d = s.divergence
        if d is None or d.left_loop or is_of_size_alone(s, d):
            return
        if is_dispatch_race(d) or is_thread_race(s, d) or swallowed_by(s, d.odd) or exhausted_by(s, d):
            return
        if s.primary_failure is not None and s.primary_failure.kind == "exception":
            return
        yield _finding(s, d)


def _hidden_forward(d: Divergence) -> Frame | None:
    """The forward through a DDP wrapper on rank 0 alone that explains an extra broadcast of buffers, if there is just one.

    Such a forward issues no collective itself in evaluation; it makes the next forward on that rank broadcast the buffers.
    """
    frames = d.odd_call.frames or ()
    in_forward = any(f.file.endswith("nn/parallel/distributed.py") and f.function in _FORWARD for f in frames)
    around = [surroundings(f.file, f.line) for f in d.odd_path]
    theirs = {test for f in d.reference_path for test in surroundings(f.file, f.line).tests}
    if not in_forward or d.odd != (0,) or any(a.depends_on_rank and not set(a.tests) <= theirs for a in around):
        return None  # that it went elsewhere by its rank explains more than a forward that nobody saw
    found = {f for frame in d.odd_path for f in calls_only_on_rank_zero(frame.file, frame.line)}
    return found.pop() if len(found) == 1 else None


def _met(s: Situation, d: Divergence) -> Path:
    """The way to the call that the odd ranks made just before."""
    before = calls_at(s.index, s.case.calls.groups.index(d.group), d.seq - 1).get(d.odd[0])
    return user_path(before.frames) if before is not None else ()


def _as_skip(s: Situation, d: Divergence) -> Divergence:
    """The same, as a call left out where the odd ranks stand behind the line at which the others wait."""
    if (
        d.skipped
        or d.added
        or not d.has_majority
        or d.fork is None
        or not line_text(d.fork.left.file, d.fork.left.line)
    ):
        return d
    return replace(d, skipped=line_passed(d.reference_path, d.odd_path, _met(s, d)) is not None)


def _left_out_inside(s: Situation, d: Divergence) -> Frame | None:
    """The line of the call left out, where the odd ranks made the one before it there too: they did go the way to it."""
    is_inside = d.skipped and d.fork is not None and d.location == d.fork.left and _met(s, d) == d.reference_path
    return d.reference_path[-1] if is_inside else None


def _finding(s: Situation, found: Divergence) -> Finding:
    d = _as_skip(s, found)
    odd, ref = w.name_ranks(d.odd), w.name_ranks(d.reference)
    hidden = _hidden_forward(d)
    frame = hidden or _left_out_inside(s, d) or d.location
    mine, theirs = w.name_call(d.odd_call), w.name_call(d.reference_call)
    if hidden is not None:
        did = f"alone {w.verb(d.odd, 'runs', 'run')} a forward through the DDP wrapper at {w.place(frame)}; its next forward broadcasts buffers, where {ref} made {theirs}"
    elif d.differs == "size" and d.fork is None and (functions := functions_called(s, d)):
        did = f"called {functions[0]} at {w.place(frame)} and gave {mine}, where {ref} called {functions[1]} and gave {theirs}"
    elif d.differs == "size" and d.fork is None:
        did = f"{shift_at(s.case, d).value} at {w.place(frame)}: it gives {mine}, a neighbour of {theirs}, which {ref} {w.verb(d.reference, 'gives', 'give')}"
    elif d.added:
        did = f"made {mine} of {w.place(frame)} once more, where {ref} made {theirs}"
    elif d.skipped:
        did = f"left out {theirs} of {w.place(frame)}, which {ref} made, and went on to {mine}"
    else:
        did = f"{w.verb(d.odd, 'is', 'are')} in {mine} from {w.place(frame)}, where {ref} made {theirs}"
    return Finding(
        rule=RankDependentCollective.id,
        cause=RankDependentCollective.cause,
        title=f"{odd} {did}",
        confidence=0.93 if d.has_majority else 0.45,
        culprit_ranks=d.culprits,
        victim_ranks=s.others(d.culprits),
        because=_because(d),
        process_group=w.group_of(d.group),
        collective=w.collective_of(d.reference_call, d.seq),
        location=w.location_of(frame),
        evidence=tuple(_evidence(s, d)),
        fixes=_fixes(d),
    )


def _because(d: Divergence) -> str:
    text = f"Call #{d.seq} of {d.group} is the first in which the ranks differ."
    if d.seq < d.stuck_seq:
        text += f" The calls #{d.seq} to #{d.stuck_seq - 1} paired silently, since op and size are equal; #{d.stuck_seq} cannot complete."
    if not d.has_majority:
        text += " There is no majority: which side is wrong has to be read from the two lines."
    tests = surroundings(d.location.file, d.location.line).tests if d.location else ()
    if tests:
        text += f" The line runs only if {' and '.join(tests[-2:])}."
    return text


def _evidence(s: Situation, d: Divergence) -> Iterable[EvidenceLine]:
    yield from w.both_sides(d)
    if d.fork is not None:
        taken, other = (d.fork.right, d.location) if d.skipped else (d.location, d.fork.left)
        yield from w.code_line(taken, f"rank {d.odd[0]} source")
        yield from w.code_line(other, f"rank {d.reference[0]} source")
        for name, ours, theirs in differing(s.case, d.odd, d.reference, d.fork.right)[:6]:
            yield EvidenceLine(
                "variables that differ",
                f"{name} = {ours} on {w.name_ranks(d.odd)}, {theirs} on {w.name_ranks(d.reference)}",
            )
    yield from w.stack_lines(s.case.ranks.get(d.odd[0]))


def _fixes(d: Divergence) -> tuple[Fix, ...]:
    frame = d.location
    where = f"{frame.file}:{frame.line}" if frame else "the line"
    tests = surroundings(frame.file, frame.line).tests if frame else ()
    condition = f"if {tests[-1]}:" if tests else "the condition:"
    return (
        Fix(
            title="Let every rank make the call",
            patch=f"{where}: call it on every rank and keep only what is done with the result (print, save) under {condition}",
            verify="unhang run -- <the same command>: all ranks pass this call",
            undo="revert the edit",
        ),
        Fix(
            title="Or let all ranks take the decision together",
            patch="flag = torch.tensor(float(condition)); dist.all_reduce(flag, op=dist.ReduceOp.MAX)\n"
            "if flag.item() > 0: ...   # the same on every rank",
            verify="unhang run -- <the same command>",
            undo="revert the edit",
        ),
        Fix(
            title="A longer timeout, or other NCCL settings, do not help: the call never comes",
            setting="leave them as they are",
            verify="the same call stays open with any timeout",
        ),
    )
