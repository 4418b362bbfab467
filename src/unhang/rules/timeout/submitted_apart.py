"""Rule: under Horovod the ranks submitted different tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import ClassVar

from unhang.analyze.event_index import Events
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import minority
from unhang.model import Finding, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, SEE_IT

_MOST_TENSORS = 200
_STALL = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks\nMissing ranks:\n"
)


class SubmittedApart(Rule):
    """Each side waits for a tensor that the other side never submitted, as Horovod's stall inspector tells.

    What it detects:
        In one report of the stall inspector: some ranks miss one tensor, other ranks miss another one.

    Why it hangs:
        The ranks took different branches and reduce different tensors; Horovod starts an operation when all ranks have named it.

    How to confirm:
        The names of the tensors tell what each side was doing: which gradients, which metric, which broadcast.

    How to fix:
        The same operations under the same names on every rank: no operation under `if rank == 0`, no module that only some run.

    Sources:
        horovod/common/stall_inspector.cc.
    """

    id = "submitted-apart"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(log_case(_STALL + "0: [allgather.metric]\n1: [allreduce.w]\n2: [allreduce.w]"), (0,)),
        Fires(log_case("Stalled ops:\nallgather.metric [missing ranks: 0]\nallreduce.w [missing ranks: 1]"), ()),
        Quiet(log_case(_STALL + "1: [allreduce.w]\n2: [allreduce.w]"), "only one side misses something"),
        Quiet(log_case(_STALL + "1: [allreduce.w]\n" + _STALL + "0: [allreduce.w]"), "two reports, at two times"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first report in which each side misses something."""
        for lines in _reports(s.events):
            missing = _missed_by(lines)
            ranks = sorted(set().union(*missing.values())) if missing else []
            if not any(a - b and b - a for a, b in combinations(list(missing.values())[:_MOST_TENSORS], 2)):
                continue
            sides = {r: frozenset(tensor for tensor, who in missing.items() if r in who) for r in ranks}
            odd = minority(sides)
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title="the ranks submitted different tensors: "
                + "; ".join(
                    f"{w.name_ranks(sorted(who))} did not submit {tensor}" for tensor, who in list(missing.items())[:3]
                ),
                confidence=0.85,
                culprit_ranks=odd,
                victim_ranks=s.others(odd) if odd else (),
                because="Each side waits for a tensor that the other never named, so nobody is merely late: their programs parted.",
                evidence=quote(lines),
                fixes=(EVERY_RANK_CALLS, SEE_IT, NO_LONGER_TIMEOUT),
            )
            return


def _reports(events: Events) -> Iterable[Sequence[LogEvent]]:
    """The lines of each report."""
    lines: list[LogEvent] = []
    for event in events.of("horovod.stalled", "horovod.missing", "horovod.missing_for"):
        if event.kind == "horovod.stalled":
            yield tuple(lines)
            lines = []
        else:
            lines.append(event)
    yield tuple(lines)


def _missed_by(lines: Sequence[LogEvent]) -> Mapping[str, frozenset[int]]:
    """Tensor -> the ranks that did not submit it. A list that was cut short ("...") tells nothing of the rest."""
    found: dict[str, set[int]] = {}
    for event in lines:
        if event.kind == "horovod.missing":
            ranks = {int(r) for r in event["missing"].split(",") if r.strip().isdecimal()}
            found.setdefault(event["tensor"], set()).update(ranks)
        elif not event["tensors"].rstrip().endswith("..."):
            rank = event.number("rank_")
            for tensor in event["tensors"].split(","):
                if rank is not None:
                    found.setdefault(tensor.strip(), set()).add(rank)
    return {tensor: frozenset(ranks) for tensor, ranks in found.items()}
