"""Rule: one rank works alone while the others wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.failures import is_timeout
from unhang.analyze.first_errors import SeenError, errors_of
from unhang.analyze.pasted import RANK_ZERO_FIRST, doings_of
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.source import surroundings
from unhang.model import EvidenceLine, Finding, Fix, LogEvent, user_frames
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import first_exception
from unhang.rules.late import describe
from unhang.rules.line_rule import quote

_SOURCE = """def main():
    if rank == 0:
        save(model)
    dist.barrier()
    other(model)
"""
_INTERRUPTED = """\
  File "/app/engine/trainer.py", line 277, in _setup_train
    self.train_loader = self.get_dataloader(self.trainset, rank=RANK)
  File "/app/engine/train.py", line 48, in get_dataloader
    with torch_distributed_zero_first(rank):
  File "/opt/env/lib/python3.9/contextlib.py", line 119, in __enter__
    return next(self.gen)
KeyboardInterrupt
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
    EXAMPLES: ClassVar = (
        Fires(log_case(_INTERRUPTED), (0,)),
        Quiet(log_case(_INTERRUPTED.replace("torch_distributed_zero_first", "build_model")), "another wait"),
        Quiet(
            log_case(_INTERRUPTED.replace("KeyboardInterrupt", "DistBackendError: NCCL error: unhandled system error")),
            "the barrier itself failed",
        ),
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:3"}, source=_SOURCE), (0,), 3),
        Quiet(
            make_case(_WAIT, hang="suspected", stacks={**_COMM, 0: "main:5"}, source=_SOURCE),
            "work that every rank does",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if rank 0 is late inside a block of its own."""
        yield from _from_log(s)
        for late in s.late if s.judges_waits else ():
            test = works_alone(s, late)
            if test and late.activity.kind in _KINDS and s.divergence is None:
                yield describe(
                    s, self, late, 0.92, f"works alone (only where {test})", _fixes(w.name_ranks(late.victims))
                )


def _from_log(s: Situation) -> Iterable[Finding]:
    """One finding where ranks were interrupted, or gave up, while they waited for what rank 0 does first."""
    waits = [e for e in errors_of(s) if e.error.type.endswith("KeyboardInterrupt") or is_timeout(e.error)]
    first = [e for e in s.events.of("python.rank0_first") if any(_holds(x, e) for x in waits)]
    stacks = [d for d in doings_of(s) if any(RANK_ZERO_FIRST.search(f.function) for f in d.frames)]
    ranks = {*(r for d in stacks for r in d.ranks), *(e.rank for e in first if e.rank is not None)}
    if not (stacks or first) or 0 in ranks or first_exception(s) is not None:
        return
    function = (
        first[0]["function"]
        if first
        else next(f.function for f in stacks[0].frames if RANK_ZERO_FIRST.search(f.function))
    )
    yield Finding(
        rule=SlowRank0Work.id,
        cause=SlowRank0Work.cause,
        title=f"rank 0 works alone, and the others wait for it in {function}",
        confidence=0.82,
        culprit_ranks=(0,),
        victim_ranks=tuple(sorted(ranks)),
        because=f"The ranks that were interrupted, or gave up, were in {function}: there all ranks but 0 stay until rank 0 has done "
        "its part (it prepares a data set, or a file). It was not done yet.",
        evidence=(
            *quote(first),
            *(
                EvidenceLine(f"{d.who} stack", " < ".join(map(str, d.frames[:4])), d.line.source.line)
                for d in stacks[:3]
            ),
        ),
        fixes=_fixes("the other ranks"),
    )


def _holds(error: SeenError, event: LogEvent) -> bool:
    """Whether a line is one of a traceback's own."""
    return error.order <= event.order <= error.order + 4 * len(error.frames) + 2


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
