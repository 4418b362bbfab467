"""Rule: a rank is habitually late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import CallState, Case, CollectiveTable, EvidenceLine, Finding, Fix
from unhang.model import example as notation
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case


def _late_case(lateness_ms: int, start_s: int = 0, stall_s: int = 0) -> Case:
    """Rank 2 comes late to every call. `start_s`: how long the first call takes; `stall_s`: of rank 2, once."""
    case = notation.make_case({r: ["all_reduce[8]@main:10"] * 12 for r in range(4)}, hang=None, exit_code=0)
    columns = dict(case.calls.columns)
    created = columns["created_ns"] + columns["seq"] * lateness_ms * 1_000_000
    created[columns["rank"] == 2] += lateness_ms * 900_000
    created[columns["seq"] == 1] -= start_s * 1_000_000_000
    created[columns["seq"] > 6] += stall_s * 1_000_000_000
    created[(columns["rank"] == 2) & (columns["seq"] == 6)] += stall_s * 1_000_000_000
    columns["created_ns"] = created
    columns["state"] = columns["state"] * 0 + CallState.COMPLETED
    return replace(
        case,
        calls=CollectiveTable(
            columns,
            case.calls.groups,
            case.calls.ops,
            case.calls.sizes,
            case.calls.dtypes,
            case.calls.stacks,
            case.calls.threads,
        ),
    )


class StragglerRule(Rule):
    """A rank is late to the collectives again and again; the job makes progress at its pace.

    What it detects:
        One rank comes last to most collectives, and the others spend a large part of the time waiting for it.

    Why it hangs:
        It does not. It costs time, and turns into a timeout only if the lateness exceeds the group's limit.

    How to confirm:
        The arrival times per rank; whether the rank's node, data or device is slower.

    How to fix:
        Even out the work: data, tokenisation, CPU contention, a throttled device.

    Sources:
        Lateness of arrival as in Greyhound and Holmes (fail-slow detection).
    """

    id = "straggler"
    cause = "straggler"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(partial(_late_case, 350), (2,)),
        Fires(partial(_late_case, 350, start_s=28), (2,)),
        Quiet(partial(_late_case, 20, stall_s=28), "one stall is no habit"),
        Quiet(partial(_late_case, 20), "a few milliseconds are no fault"),
        Quiet(make_case({r: ["all_reduce[8]@main:10"] * 12 for r in range(4)}, hang=None, exit_code=0), "an even job"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the rank that costs most, in a job that neither hung nor crashed."""
        if s.is_hang or s.is_crash:
            return
        for late in s.stragglers[:1]:
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"rank {late.rank} comes last to {late.last_share:.0%} of the collectives of {late.group}: the others lost {late.lost_s:.1f} s of {late.span_s:.1f} s",
                confidence=0.85,
                culprit_ranks=(late.rank,),
                victim_ranks=s.others((late.rank,)),
                because=f"Its median lateness behind the second-last rank is {late.median_lateness_s * 1000:.0f} ms. The job made progress all the time: this is no hang.",
                process_group=w.group_of(late.group),
                evidence=(
                    EvidenceLine(
                        "arrival times",
                        f"last in {late.last_share:.0%} of late positions, {late.lost_s:.2f} s lost in {late.span_s:.2f} s",
                    ),
                ),
                fixes=(
                    Fix(
                        "Find what this rank does more, or slower",
                        command=f"py-spy record --pid <pid of rank {late.rank}> --duration 30 -o rank{late.rank}.svg",
                        verify="compare with the same picture of another rank",
                        undo="nothing is changed",
                    ),
                ),
            )
