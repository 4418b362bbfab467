"""Rule: the stacks of the ranks end in different collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.pasted import Doing, doings_of
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case

_APART = """\
TP0:
all_reduce (torch/distributed/distributed_c10d.py:3075)
  sync_groups (cache.py:196)
  get_batch (scheduler.py:2679)
TP1-3:
broadcast (torch/distributed/distributed_c10d.py:2974)
  broadcast_pyobj (utils/common.py:1437)
  recv_requests (receiver.py:187)
"""
_TOGETHER = """\
rank 0:
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    step (train.py:41)
rank 1:
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    step (train.py:41)
"""


class StacksDisagree(Rule):
    """The stacks of the ranks end in different collectives: their programs took different ways.

    What it detects:
        Stacks in a log (py-spy, gdb, faulthandler) under headings that name the ranks; some ranks wait in one collective, the
        others in another one, or in the same one called from another place.

    Why it hangs:
        Each call waits for all ranks of its group; no rank can leave its own before the others come to it.

    How to confirm:
        The callers in the finding: the last function that both ways have in common is where the ranks decided differently.

    How to fix:
        Let all ranks take that decision on the same value: broadcast it, or reduce it, before the branch. A longer timeout does
        not help.

    Sources:
        py-spy dump; torch/distributed/distributed_c10d.py.
    """

    id = "stacks-disagree"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(log_case(_APART), (0,)),
        Fires(
            log_case(
                _TOGETHER.replace("all_reduce", "barrier", 1)
                + _TOGETHER.replace("rank 0", "rank 2").replace("rank 1", "rank 3")
            ),
            (0,),
        ),
        Quiet(log_case(_TOGETHER), "all ranks wait in the same call: the stacks do not tell why"),
        Quiet(log_case(_APART.split("TP1-3")[0]), "the stack of one rank alone"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if named ranks wait in different calls."""
        named = [d for d in doings_of(s) if d.ranks]
        waiting = [d for d in named if d.kind == "collective"]
        if len(named) != len(waiting):
            return
        ways: dict[tuple[str, str], list[Doing]] = {}
        for d in waiting:
            ways.setdefault((d.what, d.caller.function if d.caller else ""), []).append(d)
        if len(ways) < 2 or (len({what for what, _ in ways}) < 2 and any(not place for _, place in ways)):
            return
        ranks_of = {way: sorted({r for d in found for r in d.ranks}) for way, found in ways.items()}
        fewest = min(map(len, ranks_of.values()))
        odd = [way for way, ranks in ranks_of.items() if len(ranks) == fewest]
        culprits = tuple(ranks_of[odd[0]]) if len(odd) == 1 else ()
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title="; ".join(
                f"{w.name_ranks(ranks)} {w.verb(ranks, 'waits', 'wait')} in {_call(way)}"
                for way, ranks in ranks_of.items()
            ),
            confidence=0.85 if len({what for what, _ in ways}) > 1 else 0.7,
            culprit_ranks=culprits,
            victim_ranks=s.others(culprits) if culprits else (),
            because="The calls cannot meet. "
            + (
                f"{w.name_ranks(culprits)} left the way that most ranks took."
                if culprits
                else "No way has fewer ranks than the others."
            ),
            location=w.location_of(ways[odd[0]][0].caller) if culprits else None,
            evidence=tuple(_evidence(waiting)),
            fixes=_FIXES,
        )


def _call(way: tuple[str, str]) -> str:
    return f"{way[0]}, called by {way[1]}" if way[1] else way[0]


def _evidence(waiting: Sequence[Doing]) -> Iterable[EvidenceLine]:
    for d in waiting[:6]:
        yield EvidenceLine(f"{d.who} stack", " < ".join(str(f) for f in d.frames[:4]), d.line.source.line)


_FIXES = (
    Fix(
        "Decide together before the branch",
        patch="flag = torch.tensor(float(local_decision), device=device); dist.all_reduce(flag, op=dist.ReduceOp.MAX)\n"
        "if flag.item() > 0: ...   # the same way on every rank",
        verify="unhang run -- <the same command>: all ranks make the same calls",
        undo="revert the edit",
    ),
    Fix(
        "Does not help: a longer timeout",
        setting="leave the timeout as it is: the two calls never meet",
        verify="the stacks are the same after the longer wait",
        undo="nothing is changed",
    ),
)
