"""Rule: one rank works alone while the others wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.source import surroundings
from unhang.model import Finding, Fix, user_frames
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.late import describe

_SOURCE = """def main():
    if rank == 0:
        save(model)
    dist.barrier()
    other(model)
"""
_WAIT = {r: ["barrier@main:4 !"] for r in (1, 2, 3)}
_COMM = dict.fromkeys((1, 2, 3), "main:4>~comm")
_KINDS = ("user", "spinning", "gil", "lock")


def works_alone(s: Situation, late: LateRank) -> str:
    """The condition that lets only rank 0 do what this rank does, or an empty string."""
    evidence = s.case.ranks.get(late.rank)
    stack = evidence.main_stack if evidence else None
    for frame in user_frames(stack.frames if stack else ()):
        around = surroundings(frame.file, frame.line)
        if around.only_on_rank_zero and late.rank == 0:
            return around.tests[-1]
    return ""


class SlowRank0Work(Rule):
    """Rank 0 works alone - save, evaluate, tokenise, merge - and the others already wait.

    What it detects:
        The rank that its peers wait for is inside a block that only rank 0 enters. Nothing is deadlocked as long as that work
        ends; the collective's timeout may end the job first.

    Why it hangs:
        It does not, in the strict sense: the wait is as long as the work. It turns into a timeout when the work takes longer than
        the limit of the group in which the others wait.

    How to confirm:
        The stack of rank 0; whether it changes between two looks.

    How to fix:
        Make the work shorter or spread it; save asynchronously; wait for it in a group of its own with a longer timeout. This is
        the one cause for which a longer timeout helps.

    Sources:
        41 of 47 public timeouts with a known cause were CPU-side disagreement or slow rank-0 work.
    """

    id = "slow-rank0-work"
    cause = "slow-rank0-work"
    needs = ("stacks",)
    EXAMPLES: ClassVar = (
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:3"}, source=_SOURCE), (0,), 3),
        Quiet(
            make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:5"}, source=_SOURCE),
            "work that every rank does",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if rank 0 is late inside a block of its own."""
        for late in s.late if s.judges_waits else ():
            test = works_alone(s, late)
            if test and late.activity.kind in _KINDS and s.divergence is None:
                yield describe(
                    s, self, late, 0.92, f"works alone (only where {test})", _fixes(w.name_ranks(late.victims))
                )


def _fixes(victims: str) -> tuple[Fix, ...]:
    return (
        Fix(
            "Wait for the long work in a group of its own, with its own limit",
            patch='slow = dist.new_group(timeout=timedelta(hours=2), backend="gloo")   # once, on every rank\n'
            "...\nif rank == 0: long_work()\ndist.barrier(group=slow)",
            verify="unhang run -- <the same command>: the others leave the barrier when rank 0 is done",
            undo="revert the edit",
        ),
        Fix(
            "Or let all ranks share the work, or save asynchronously",
            patch="torch.distributed.checkpoint.async_save(...) instead of torch.save on rank 0",
            verify=f"{victims} no longer wait",
            undo="revert the edit",
        ),
        Fix(
            "Until then: a timeout longer than the work",
            setting="init_process_group(timeout=timedelta(minutes=60))",
            verify="-",
            undo="restore the old timeout; NCCL_TIMEOUT does nothing",
        ),
    )
