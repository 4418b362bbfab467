"""Rule: the store in which the ranks meet cannot be opened or reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of


class StoreOutOfReach(ReadingRule):
    """The ranks cannot meet: the store at MASTER_ADDR:MASTER_PORT cannot be opened or reached.

    What it detects:
        A rank of the check could not connect within the limit, or rank 0 could not listen.

    Why it hangs:
        `init_process_group` waits there for 300 s or more, with a message about sockets.

    How to confirm:
        The findings on the network name what is in the way: a name that does not resolve, a port that is held, a host that
        does not answer. `getent hosts $MASTER_ADDR`, `nc -zv $MASTER_ADDR $MASTER_PORT` from that node.

    How to fix:
        The address of the host that runs rank 0, and a port that is free there and open between the nodes.

    Sources:
        torch/distributed/run.py: --master-addr, --rdzv-endpoint.
    """

    id = "store-out-of-reach"
    cause = "rendezvous-endpoint"
    reads = ("setup.job",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("setup.job here", nodes=2, ranks_per_node=2),
                read(
                    "party.unreachable node0:29500", rank=1, is_holder=False, reason="cannot reach the store: timed out"
                ),
            ),
            (1,),
        ),
        Quiet(readings_case(read("setup.job here", nodes=1, ranks_per_node=1)), "one process needs no store"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding, of this rank's own view: it met nobody who could tell more."""
        failed = s.readings.of("party.unreachable")
        if not failed:
            return
        first = failed[0]
        opens = first["is_holder"] is True
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"rank {first.rank} cannot {'open' if opens else 'reach'} the store at {first.subject}",
            confidence=0.95,
            culprit_ranks=ranks_of(failed),
            because=f"{first.text('reason')}. Without a store no rank learns of another; the rest was checked on this rank alone.",
            evidence=cite(failed),
            fixes=(
                Fix(
                    "See who answers there",
                    command=f"getent hosts {first.subject.rpartition(':')[0]}; ss -ltnp 'sport = :{first.subject.rpartition(':')[2]}'",
                    verify="unhang check: all ranks meet",
                    undo="nothing is changed",
                ),
            ),
        )
