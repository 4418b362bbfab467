"""Rule: a rank, or a link within a host, fails in every group that it is in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.network.bad_link import bad_finding, hosts_between
from unhang.rules.reading_rule import ReadingRule

_SEARCH = read("links.search", ranks=4, rounds=3, tests=20, is_complete=True)


class BadRank(ReadingRule):
    """A rank, or the link between two ranks of one host, fails in every group of ranks that it is in.

    What it detects:
        Groups of ranks exchange data with each other, round after round. The groups are chosen so that in the end a rank that
        fails stands beside ranks that are known to be good. A rank whose process never comes back is named at once.

    Why it hangs:
        One bad rank stops, slows or corrupts every collective of the whole job, and the timeout names all ranks alike.

    How to confirm:
        The tests that failed are in the evidence: run `unhang check --links` again on those nodes alone, and
        `unhang check` on that node as one process: its findings may say why.

    How to fix:
        Leave the node out until it is known why. Between two devices of one host look at PCIe, NVLink and ACS.

    Sources:
        docs/design/0006-group-testing.md.
    """

    id = "bad-rank"
    cause = "unknown"
    reads = ("links.search",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(_SEARCH, read("links.bad_rank 2", rank=2, failed_tests="0 2; 1 2", reason="wrong sum")), (2,)
        ),
        Fires(
            readings_case(_SEARCH, read("links.bad_link 0-1", rank=0, failed_tests="0 1", reason="timed out")), (0, 1)
        ),
        Fires(readings_case(_SEARCH, read("links.stuck 3", rank=3, rounds=2)), (3,)),
        Quiet(readings_case(_SEARCH), "every group was right"),
        Quiet(
            readings_case(
                _SEARCH, read("links.undecided 0-1", rank=0, why="the two failed together, perhaps by chance")
            ),
            "nothing is established",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each bad rank, for each that got stuck, and for each bad link within a host."""
        for reading in s.readings.of("links.stuck"):
            yield replace(
                bad_finding(self, s, reading),
                title=f"rank {reading.subject} got stuck while it exchanged data with others",
                because="Its process never came back from a test that ended for the other ranks of the same group.",
            )
        for reading in s.readings.of("links.bad_rank", "links.bad_link"):
            if reading.kind == "links.bad_rank" or len(hosts_between(s, reading)) < 2:
                yield bad_finding(self, s, reading)
