"""Rule: the link between two ranks on different hosts fails in every group that it is in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.base import Rule
from unhang.rules.reading_rule import ReadingRule, cite

_SEARCH = read("links.search", ranks=4, rounds=3, tests=20, is_complete=True)


class BadLink(ReadingRule):
    """The link between two ranks on different hosts fails in every group of ranks that it is in.

    What it detects:
        Groups of ranks exchange data with each other, round after round. The groups are chosen so that in the end what fails
        stands beside ranks that are known to be good.

    Why it hangs:
        One bad link stops, slows or corrupts every collective of the whole job, and the timeout names all ranks alike.

    How to confirm:
        The tests that failed are in the evidence: run `unhang check --links` again on those nodes alone.

    How to fix:
        Both ends are good by themselves, so look at what lies between them: cable, switch port, route, firewall. Until then
        leave one of the two nodes out.

    Sources:
        docs/design/0006-group-testing.md.
    """

    id = "bad-link"
    cause = "network-unstable"
    reads = ("links.search",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(_SEARCH, read("links.bad_link 1-3", rank=1, failed_tests="1 3; 1 3", reason="timed out")),
            (1, 3),
        ),
        Quiet(readings_case(_SEARCH), "every group was right"),
        Quiet(
            readings_case(
                _SEARCH, read("links.undecided 0-1", rank=0, why="the two failed together, perhaps by chance")
            ),
            "nothing is established",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each such link."""
        for reading in s.readings.of("links.bad_link"):
            if len(hosts_between(s, reading)) == 2:
                yield bad_finding(self, s, reading)


def hosts_between(s: Situation, reading: Reading) -> list[str]:
    """The hosts of the ranks that a reading of the search names."""
    evidence = [s.case.ranks.get(rank) for rank in ranks_named(reading)]
    return sorted({e.identity.host for e in evidence if e and e.identity.host})


def ranks_named(reading: Reading) -> tuple[int, ...]:
    """The ranks that a reading of the search names: `2`, or `1-3`."""
    return tuple(int(rank) for rank in reading.subject.split("-"))


def bad_finding(rule: Rule, s: Situation, reading: Reading) -> Finding:
    """What the search found to be bad, with the groups that failed."""
    ranks, hosts = ranks_named(reading), hosts_between(s, reading)
    where = f" ({' and '.join(hosts)})" if hosts else ""
    is_link = len(ranks) == 2
    who = f"the link between ranks {ranks[0]} and {ranks[1]}" if is_link else f"rank {ranks[0]}"
    good = "Each of the two works with other ranks" if is_link else "It fails with ranks that work with each other"
    said = f" It was said: {reading.text('reason')}." if reading.text("reason") else ""
    return Finding(
        rule=rule.id,
        cause=rule.cause,
        title=f"{who}{where} is bad: it fails in every group",
        confidence=0.95,
        culprit_ranks=ranks,
        victim_ranks=s.others(ranks),
        because=f"{good}; the groups that failed: {reading.text('failed_tests')}.{said}",
        evidence=cite([reading, *s.readings.of("links.search")]),
        fixes=(
            Fix(
                "Leave that node out of the job",
                setting="srun --exclude NODE, or a taint or cordon in Kubernetes",
                verify="unhang check --links on the rest: no finding",
                undo="take the exclusion back when it is mended",
            ),
        ),
    )
