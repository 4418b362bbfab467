"""Rule: the clocks of the nodes are apart."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_MOST_S, _VERY_S = 1.0, 300.0
_MAJORITY = 3


class ClockSkew(ReadingRule):
    """The wall clock of a node is more than a second off that of the others.

    What it detects:
        The ranks meet several times and note their clocks before and after; two clocks are apart by more than a second, with
        the time of the meetings taken off.

    Why it hangs:
        It does not; but logs of several nodes cannot be put in order, so that the first failure is not known. Far apart,
        certificates and tickets (TLS, Kerberos) are refused, and files seem to be of the future.

    How to confirm:
        `date +%s.%N` on both nodes; `chronyc tracking`.

    How to fix:
        Let the same time server set the clocks of all nodes.

    Sources:
        RFC 5905 (NTP): the bounds of an offset; RFC 4120 (Kerberos): five minutes are allowed.
    """

    id = "clock-skew"
    cause = "unknown"
    reads = ("machine.clock_offset",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [
                    read("machine.clock_offset", rank=r, offset_s=3600.0 if r == 3 else 0.01, uncertainty_s=0.05)
                    for r in range(4)
                ]
            ),
            (3,),
        ),
        Fires(
            readings_case(
                [
                    read("machine.clock_offset", rank=r, host=f"node{r}", offset_s=-7.0 * r, uncertainty_s=0.05 * r)
                    for r in range(2)
                ]
            ),
            (),
        ),
        Fires(
            readings_case(
                [read("machine.clock_offset", rank=r, offset_s=-40.0 * (r > 0), uncertainty_s=0.05) for r in range(4)]
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                [read("machine.clock_offset", rank=r, offset_s=1.4 * (r == 3), uncertainty_s=0.9) for r in range(4)]
            ),
            "the meeting took too long to tell",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding: those that are off the middle; of two clocks nobody knows which is right."""
        readings = [r for r in s.readings.of("machine.clock_offset") if r.number("offset_s") is not None]
        if not readings:
            return
        middle = statistics.median_low([_offset(r) for r in readings])
        slack = min((r.number("uncertainty_s") or 0.0) for r in readings if _offset(r) == middle)
        off = [r for r in readings if abs(_offset(r) - middle) - (r.number("uncertainty_s") or 0.0) - slack > _MOST_S]
        if not off:
            return
        is_decided = len(readings) >= _MAJORITY and len(off) < len(readings) - len(off)
        worst = max(off, key=lambda r: abs(_offset(r) - middle))
        apart_s = _offset(worst) - middle
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=_title(off, apart_s)
            if is_decided
            else f"the clocks of {_who(readings)} are {abs(apart_s):.1f} s apart",
            confidence=0.8 if abs(apart_s) > _VERY_S else 0.75,
            culprit_ranks=ranks_of(off) if is_decided else (),
            because=f"Known to {(worst.number('uncertainty_s') or 0.0) + slack:.2f} s. Lines of logs from these nodes cannot be "
            "put in order by their times" + ("." if is_decided else "; which of the clocks is right is not known."),
            evidence=cite(off if is_decided else readings),
            fixes=(
                Fix(
                    "Let one time server set all clocks",
                    command="chronyc makestep   # or: timedatectl set-ntp true",
                    verify="unhang check on all ranks names no clock",
                    undo="not needed",
                ),
            ),
        )


def _offset(reading: Reading) -> float:
    return reading.number("offset_s") or 0.0


def _who(readings: Sequence[Reading]) -> str:
    return hosts_of(readings) if len({r.host for r in readings}) > 1 else "the ranks"


def _title(off: Sequence[Reading], apart_s: float) -> str:
    ranks = ranks_of(off)
    told = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{' ...' * (len(ranks) > 8)}"
    return f"the clock of {hosts_of(off)} ({told}) is {abs(apart_s):.1f} s {'ahead' if apart_s > 0 else 'behind'}"
