"""Rule: the same program, but another number of batches."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.analyze.align import StuckCollective
from unhang.analyze.callpath import user_path
from unhang.analyze.divergence import Divergence
from unhang.analyze.failures import early_leavers
from unhang.analyze.situation import Situation
from unhang.analyze.source import Loop, catches_stop_iteration, surroundings
from unhang.analyze.variables import differing
from unhang.model import CollectiveCall, EvidenceLine, Finding, Fix, Frame, RankEvidence
from unhang.model.example import Fires, Quiet, ended
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.collective.order import is_dispatch_race, is_thread_race
from unhang.rules.collective.swallowed_exception import swallowed_by
from unhang.rules.examples import make_case

_MOST_COMPARED = 8
_SOURCE = (
    "def main():\n    for batch in loader:\n        loss = model(batch)\n        loss.backward()\n    dist.barrier()\n"
)


class UnevenInputs(Rule):
    """The same program on every rank, but another number of iterations.

    What it detects:
        At their previous call all ranks were in the same loop; at the first different call some have left it (for what follows,
        or for the end of the program) and the others are in it once more.

    Why it hangs:
        Each iteration issues collectives. The ranks with more iterations wait for calls that the others never make.

    How to confirm:
        Print the number of batches per rank before the loop.

    How to fix:
        Agree on the number before the loop (all-reduce MIN of the lengths), drop or pad the last batch, or use DDP's `join()`.

    Sources:
        PyTorch documentation: Distributed Training with Uneven Inputs Using the Join Context Manager; DistributedSampler(drop_last).
    """

    id = "uneven-inputs"
    cause = "uneven-inputs"
    needs = ("calls",)

    def check(self, s: Situation) -> Iterable[Finding]:
        """A loop that some ranks left, by a call outside of it or by the end of their program."""
        d = s.divergence
        if d is not None:
            if is_dispatch_race(d) or is_thread_race(s, d) or swallowed_by(s, d.odd):
                return
            if s.primary_failure is not None and s.primary_failure.kind == "exception":
                return
            if d.left_loop is not None:
                yield _left_loop(s, d)
            elif exhausted_by(s, d) is not None:
                yield _exhausted(s, d)
            return
        found = _ended_in_loop(s)
        if found is not None:
            yield _ended(s, *found)


def exhausted_by(s: Situation, d: Divergence) -> tuple[int | None, str] | None:
    """(line of the handler, name) of an iterator that has ended on the odd ranks and not on the others."""
    if d.fork is None or d.fork.same_line or d.left_loop is not None:
        return None
    for name, ours, theirs in differing(s.case, d.odd, d.reference, d.fork.right):
        if ours.startswith("exhausted") and not theirs.startswith("exhausted"):
            handler = catches_stop_iteration(d.fork.right.file, d.fork.right.line)
            return handler, name
    return None


def _steps(s: Situation, ranks: Iterable[int]) -> str:
    counts = {r: s.step_of(r) for r in ranks if s.step_of(r) is not None}
    return (
        "; optimizer steps: " + ", ".join(f"rank {r}: {n}" for r, n in counts.items())
        if len(set(counts.values())) > 1
        else ""
    )


def _left_loop(s: Situation, d: Divergence) -> Finding:
    loop = d.left_loop
    assert loop is not None
    leavers, stayers = w.name_ranks(loop.leavers), w.name_ranks(loop.stayers)
    short = d.odd == loop.leavers
    frame = d.odd_path[d.fork.depth] if d.fork is not None and short else (d.odd_path[-1] if d.odd_path else loop.frame)
    return Finding(
        rule=UnevenInputs.id,
        cause=UnevenInputs.cause,
        title=f"{leavers} left the loop at {w.place(loop.frame)} while {stayers} {w.verb(loop.stayers, 'is', 'are')} in it once more",
        confidence=0.94 if d.has_majority else 0.85,
        culprit_ranks=d.odd,
        victim_ranks=s.others(d.odd),
        because=f"Up to call #{d.seq - 1} of {d.group} all were in the loop of line {loop.header}; at #{d.seq} {stayers} made another round."
        + _steps(s, s.case.ranks),
        process_group=w.group_of(d.group),
        collective=w.collective_of(d.reference_call, d.seq),
        location=w.location_of(frame),
        evidence=(
            *w.both_sides(d),
            *w.code_line(Frame(loop.frame.file, loop.header, loop.frame.function), "loop"),
        ),
        fixes=_fixes(),
    )


def _exhausted(s: Situation, d: Divergence) -> Finding:
    found = exhausted_by(s, d)
    assert d.fork is not None
    assert found is not None
    line, variable = found
    odd = w.name_ranks(d.odd)
    frame = d.fork.right
    return Finding(
        rule=UnevenInputs.id,
        cause=UnevenInputs.cause,
        title=f"{odd} left the training steps early: {w.name_call(d.odd_call)} from {w.place(frame)}, where the others made {w.name_call(d.reference_call)}",
        confidence=0.9 if d.has_majority else 0.6,
        culprit_ranks=d.odd,
        victim_ranks=s.others(d.odd),
        because=f"The iterator {variable!r} has ended on {odd} and not on the others"
        + (f"; StopIteration is caught at line {line}." if line else ".")
        + _steps(s, s.case.ranks),
        process_group=w.group_of(d.group),
        collective=w.collective_of(d.reference_call, d.seq),
        location=w.location_of(Frame(frame.file, line, frame.function) if line else frame),
        evidence=(
            *w.both_sides(d),
            *(w.code_line(Frame(frame.file, line, frame.function), "handler") if line else ()),
        ),
        fixes=_fixes(),
    )


def is_outnumbered(s: Situation, leaver: RankEvidence) -> bool:
    """Whether more ranks wait for the call than came to a normal end without it; a rank that called exit chose to leave."""
    if leaver.exit is not None and leaver.exit.kind != "exit":
        return True
    for stuck in s.stuck:
        if leaver.rank in stuck.missing:
            ended = [r for r in stuck.missing if (e := s.case.ranks.get(r)) and e.exit and e.exit.kind == "exit"]
            if len(stuck.calls) <= len(ended):
                return False
    return True


def _last_call(s: Situation, rank: int) -> CollectiveCall | None:
    rows = s.case.calls.rows(rank=rank, is_p2p=0)
    return s.case.calls.call(int(rows[-1])) if len(rows) else None


def _ended_in_loop(s: Situation) -> tuple[RankEvidence, CollectiveCall, Frame, Loop] | None:
    """A rank whose program came to its end after a call in a loop that a waiting peer is still in."""
    for evidence in early_leavers(s.case):
        if evidence.exit is None or evidence.exit.kind != "exit" or evidence.exit.frames:
            continue
        last = _last_call(s, evidence.rank)
        for stuck in s.stuck:
            waiting = [c for r, c in stuck.calls.items() if r in stuck.waiting and evidence.rank in stuck.missing]
            if last is not None and waiting:
                found = _shared_loop(waiting[0], last)
                if found is not None and _times(s, evidence.rank, waiting[0]):
                    return evidence, waiting[0], *found
    return None


def _times(s: Situation, rank: int, like: CollectiveCall) -> int:
    """How often a rank made this call, from this place."""
    table, path = s.case.calls, user_path(like.frames)
    rows = table.rows(rank=rank, group=table.groups.index(like.group), is_p2p=0).tolist()
    stacks = [i for i, stack in enumerate(table.stacks) if user_path(stack) == path]
    return sum(int(table["frames"][row]) in stacks for row in rows)


def made_as_often(s: Situation, rank: int, stuck: StuckCollective) -> bool:
    """Whether a missing rank has made the call as often as those that wait in it: they made another one more, before."""
    calls = [stuck.calls[r] for r in stuck.waiting if stuck.calls[r].frames]
    is_whole = s.case.calls.wrapped_ranks.isdisjoint({rank, *stuck.waiting})
    return (
        bool(calls) and is_whole and all(_times(s, rank, c) >= _times(s, c.rank, c) > 0 for c in calls[:_MOST_COMPARED])
    )


def _shared_loop(waiting: CollectiveCall, last: CollectiveCall) -> tuple[Frame, Loop] | None:
    mine, theirs = user_path(waiting.frames), user_path(last.frames)
    for a, b in zip(mine, theirs, strict=False):
        if (a.file, a.function) != (b.file, b.function):
            return None
        for loop in surroundings(a.file, a.line).loops:
            if b.line in loop:
                return a, loop
    return None


def _ended(s: Situation, evidence: RankEvidence, call: CollectiveCall, frame: Frame, loop: Loop) -> Finding:
    rank = evidence.rank
    at = Frame(frame.file, loop.header, frame.function)
    others = next(stuck.waiting for stuck in s.stuck if rank in stuck.missing)
    culprits = (rank,) if is_outnumbered(s, evidence) else others
    return Finding(
        rule=UnevenInputs.id,
        cause=UnevenInputs.cause,
        title=f"rank {rank} ran out of iterations of the loop at {w.place(at)} and ended while {w.name_ranks(others)} went on",
        confidence=0.93 if culprits == (rank,) else 0.8,
        culprit_ranks=culprits,
        victim_ranks=s.others(culprits),
        because=f"Its program came to a normal end after the last round; {w.name_call(call)} #{call.seq} of {call.group} waits for it."
        + _steps(s, s.case.ranks),
        process_group=w.group_of(call.group),
        collective=w.collective_of(call, call.seq),
        location=w.location_of(at),
        evidence=(
            w.path_line(call.rank, f"#{call.seq} {w.name_call(call)}", user_path(call.frames)),
            EvidenceLine(f"rank {rank} exit", "normal end of the program"),
        ),
        fixes=_fixes(),
    )


def _fixes() -> tuple[Fix, ...]:
    return (
        Fix(
            "Agree on the number of iterations before the loop",
            patch="n = torch.tensor(len(loader)); dist.all_reduce(n, op=dist.ReduceOp.MIN)\nfor _, batch in zip(range(int(n)), loader): ...",
            verify="unhang run -- <the same command>: the loop ends on all ranks at the same call",
            undo="revert the edit",
        ),
        Fix(
            "Or let DDP shadow the missing batches",
            patch="with model.join(): ...   # for DDP's own collectives only, not for those that you call yourself",
            verify="unhang run -- <the same command>",
            undo="revert the edit",
        ),
        Fix(
            "Even out the data",
            patch="DistributedSampler(..., drop_last=True) or pad the last batch",
            verify="len(loader) is equal on all ranks",
            undo="revert",
        ),
    )


_LOOP = ["all_reduce[8]@main:4", "all_reduce[8]@main:4"]
_EPOCH = [*_LOOP, "all_reduce[8]@main:4", "barrier@main:5"]
_EPOCHS = [*_EPOCH * 3, *_EPOCH[:-1]]
UnevenInputs.EXAMPLES = (
    Fires(
        make_case(
            {3: [*_LOOP, "barrier@main:5 !"], **{r: [*_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)}},
            source=_SOURCE,
        ),
        (3,),
        5,
    ),
    Fires(
        make_case(
            {
                3: [*_EPOCH, *_EPOCH, *_LOOP, "barrier@main:5 !"],
                **{r: [*_EPOCH, *_EPOCH, *_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)},
            },
            source=_SOURCE,
        ),
        (3,),
        5,
    ),
    Fires(
        make_case(
            {3: [*_EPOCHS, "all_reduce[8]@main:4 !"], **{r: [*_EPOCHS, "barrier@main:5 !"] for r in range(3)}},
            source=_SOURCE,
        ),
        (3,),
        4,
    ),
    Fires(
        make_case(
            {3: _LOOP, **{r: [*_LOOP, "all_reduce[8]@main:4 !"] for r in range(3)}},
            source=_SOURCE,
            exits={3: ended("exit", 0)},
        ),
        (3,),
        2,
    ),
    Quiet(
        make_case(
            {r: [*_LOOP, "barrier@main:5"] for r in range(4)},
            source=_SOURCE,
            hang=None,
            exit_code=0,
        ),
        "all ranks leave the loop together",
    ),
    Quiet(
        make_case(
            {3: _LOOP, **{r: [*_LOOP, "barrier@main:3 !"] for r in range(3)}},
            source=_SOURCE,
            exits={3: ended("exit", 0)},
        ),
        "what the others wait in, though it is in the loop, is no call that the rank ever made there",
    ),
)
