"""Rule: all have come to a collective with a root, and some never leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from unhang.analyze.align import calls_at, majority, members_of
from unhang.analyze.callpath import user_path
from unhang.analyze.positions import bare_op
from unhang.analyze.situation import Situation
from unhang.analyze.streams import stack_path
from unhang.model import CallState, CollectiveCall, EvidenceLine, Finding, Fix, Frame, ProcessState, ThreadStack
from unhang.model.example import Fires, Quiet, path
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")
_ROOT_NAMES = ("src", "dst", "group_src", "group_dst")
_BUSY_SHARE = 0.05
_ROUND = ["all_reduce[8]@main:9", "broadcast[1]@main:10"]
_OPEN = ["all_reduce[8]@main:9", "broadcast[1]@main:10 !"]
_TWO_STAY = {0: _OPEN, 1: _OPEN, 2: [*_ROUND, "all_reduce[4]@main:11 !"]}
_HERE = dict.fromkeys((0, 1), "main:10>~comm")
_CALLED = Frame("/site-packages/torch/distributed/distributed_c10d.py", 3151, "broadcast")


def _in_broadcast(src: int) -> ThreadStack:
    """A rank in a broadcast whose root is known, for examples."""
    return ThreadStack("MainThread", path("main:10>~comm"), is_main=True, variables=((_CALLED, "src", str(src)),))


class RootsDisagree(Rule):
    """Ranks wait in a broadcast, reduce, gather or scatter to which every member has come: they name different roots.

    What it detects:
        Ranks that others wait for sit in a collective with a root although every member of the group has called it, with equal
        op, and nobody computes. On live processes that are connected, only roots that differ keep them there.

    Why it hangs:
        Each rank sends to, or receives from, the rank that it takes for the root. A rank that gets its part from nobody waits for
        ever; one whose part came goes on.

    How to confirm:
        Print `src` (or `dst`) on every rank before that line. gloo records no root; NCCL neither.

    How to fix:
        One root, as a rank of the whole job (`src`) or of the group (`group_src`), the same on every rank: never the own rank.

    Sources:
        torch.distributed: src and dst are global ranks also where a group is given.
    """

    id = "roots-disagree"
    cause = "code-divergence"
    needs = ("calls", "stacks")
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                _TWO_STAY,
                world=3,
                hang="suspected",
                stacks={**_HERE, 2: "main:11>~comm"},
            ),
            (),
            10,
        ),
        Fires(
            make_case(
                {0: _OPEN, 1: _OPEN, 2: _OPEN, 3: [*_ROUND, "all_reduce[4]@main:11 !"]},
                hang="suspected",
                stacks={0: _in_broadcast(0), 1: _in_broadcast(1), 2: _in_broadcast(0), 3: "main:11>~comm"},
            ),
            (1,),
            10,
        ),
        Quiet(
            make_case(
                {0: _OPEN, 1: _ROUND[:1], 2: [*_ROUND, "all_reduce[4]@main:11 !"]},
                world=3,
                hang="suspected",
                stacks={0: "main:10>~comm", 1: "main:9>work:4", 2: "main:11>~comm"},
            ),
            "a member has not come yet",
        ),
        Quiet(
            make_case(
                _TWO_STAY,
                world=3,
                hang="suspected",
                stacks={**_HERE, 2: "main:11>~comm"},
                states={0: ProcessState("S", 0.4), 1: ProcessState("S", 0.4)},
            ),
            "a large tensor is under way",
        ),
        Quiet(
            make_case(
                _TWO_STAY,
                world=3,
                hang="suspected",
                stacks={**_HERE, 2: "main:11>~comm"},
                states={1: ProcessState("T", 0.0)},
            ),
            "one of them is stopped",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first such position."""
        if s.divergence is not None or s.primary_failure is not None or s.case.hang is None or not s.waits.roots:
            return
        found = [call for rank in s.waits.roots if (call := _held_in(s, rank)) is not None]
        if len(found) < 2 or len(found) < len(s.waits.roots) or len({(c.group.name, c.seq) for c in found}) > 1:
            return
        yield _finding(s, found)


def _held_in(s: Situation, rank: int) -> CollectiveCall | None:
    """The rooted call in which the rank waits although all have come to it."""
    evidence = s.case.ranks.get(rank)
    if (
        evidence is None
        or s.activities[rank].kind != "communication"
        or (evidence.state and evidence.state.state == "T")
    ):
        return None
    if evidence.state is not None and (evidence.state.cpu_share or 0) > _BUSY_SHARE:
        return None
    for row in s.recorded.fronts.get(rank, ()):
        call = s.case.calls.call(row)
        group = int(s.case.calls["group"][row])
        calls = calls_at(s.index, group, call.seq)
        has_all = set(calls) >= set(members_of(s.index, group))
        if bare_op(call.op) in _WITH_ROOT and has_all and {bare_op(c.op) for c in calls.values()} == {bare_op(call.op)}:
            return call
    return None


def _roots(s: Situation, ranks: Sequence[int]) -> Mapping[int, str]:
    """The root that each of these ranks names, where the variables of torch's own frame are known.

    By one name for all: a rank of the job (`src`) and a rank of the group (`group_src`) are different numbers.
    """
    found: dict[str, dict[int, str]] = {name: {} for name in _ROOT_NAMES}
    for rank in ranks:
        stack = s.case.ranks[rank].main_stack
        for frame, name, value in stack.variables if stack else ():
            if "torch/distributed/" in frame.file and name in found and value != "None":
                found[name].setdefault(rank, value)
    return max(found.values(), key=len)


def _finding(s: Situation, found: Sequence[CollectiveCall]) -> Finding:
    ranks, first = tuple(sorted(c.rank for c in found)), found[0]
    roots = _roots(s, ranks)
    differ = len(set(roots.values())) > 1
    _, odd, has_majority = majority(roots) if differ else ((), (), False)
    culprits = odd if has_majority else ()
    op = f"{bare_op(first.op)} #{first.seq} of {first.group}"
    frames = user_path(first.frames) or stack_path(s.case, first.rank) or ()
    who = w.name_ranks(ranks)
    told = "; ".join(f"rank {r} names {root}" for r, root in sorted(roots.items()))
    done = [
        r
        for r, c in calls_at(s.index, s.case.calls.groups.index(first.group), first.seq).items()
        if c.state is CallState.COMPLETED
    ]
    return Finding(
        rule=RootsDisagree.id,
        cause=RootsDisagree.cause,
        title=f"{who} never leave {op}, to which every member has come: they name different roots"
        + (f" ({told})" if differ else ""),
        confidence=0.92 if differ else 0.65,
        culprit_ranks=culprits,
        victim_ranks=s.others(culprits) if culprits else (),
        because=f"All members of {first.group} called it with the same op, and {who} {w.verb(ranks, 'waits', 'wait')} in it without any work"
        + (f", while {w.name_ranks(done)} {w.verb(done, 'is', 'are')} through." if done else ".")
        + ("" if differ else " That the network lost a part of it is the other explanation; the root is not recorded."),
        process_group=w.group_of(first.group),
        collective=w.collective_of(first, first.seq),
        location=w.location_of(frames[-1] if frames else None),
        evidence=tuple(line for r in ranks[:3] for line in _lines(s, r, op, roots)),
        fixes=(
            Fix(
                "Name the same root on every rank",
                patch=f"{w.place(frames[-1] if frames else None)}: print src (or dst) on every rank; it must not be the own rank, and is a rank of the whole job, not of the group",
                verify="unhang run -- <the same command>: all ranks pass this line",
                undo="revert the edit",
            ),
        ),
    )


def _lines(s: Situation, rank: int, op: str, roots: Mapping[int, str]) -> Iterable[EvidenceLine]:
    yield EvidenceLine(f"rank {rank} calls", f"in {op}" + (f", root {roots[rank]}" if rank in roots else ""))
    yield from w.stack_lines(s.case.ranks.get(rank), 2)
