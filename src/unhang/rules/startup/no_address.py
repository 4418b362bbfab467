"""Rule: a rank never told the others where it can be reached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.examples import log_case
from unhang.rules.startup.start_rule import StartRule, was_killed

# gloo connects all with all: each member publishes its address under its rank, below the number of the group's context.
_ADDRESS = re.compile(r"default_pg\S*/(?:cpu|cuda|xpu|mps)//\d+/(?P<rank>\d{1,7})(?=$|[\s,\]])")
_LINE = "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/{}"


class NoAddress(StartRule):
    """The ranks of the default group waited for the address of one that never came to init_process_group.

    What it detects:
        "wait timeout after ... keys: /default_pg/...//cpu//0/R", which gloo prints for the member R whose address is missing.

    Why it hangs:
        gloo connects every member with every other; one that does not come keeps all of them.

    How to confirm:
        The stack or the output of rank R: it was never started, failed before, or works on something else first.

    How to fix:
        Start it, or call init_process_group first and do slow work afterwards.

    Sources:
        gloo, rendezvous/context.cc: the key is the rank in the group.
    """

    id = "no-address"
    cause = "rendezvous-incomplete"
    kinds = ("store.wait_timed_out",)
    over = ("watchdog.timeout",)
    confidence = 0.88
    fixes = (
        Fix(
            "Look at the ranks that did not come; call init_process_group before slow work",
            patch="dist.init_process_group(...)   # before downloads, tokenising, model building",
            verify="every rank prints a line after it",
            undo="revert the edit",
        ),
        Fix(
            "Does not help: a longer timeout, unless the rank is merely slow",
            setting="leave the timeout as it is",
            verify="the key in the message names the rank; look there",
            undo="nothing is changed",
        ),
    )
    EXAMPLES: ClassVar = (
        Fires(log_case("\n".join(_LINE.format(2) for _ in range(3))), (2,)),
        Quiet(
            log_case("DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"),
            "the id of NCCL's root",
        ),
        Quiet(log_case(_LINE.format(2) + "\nep 1 train, step 7, loss 0.1"), "training began"),
        Quiet(log_case("[rank1]: " + _LINE.format(1)), "the rank itself waits: the key is of another meaning"),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The lines with such a key, unless a process was killed or that very rank waited as well."""
        if was_killed(s):
            return ()
        found = [e for e in super().evidence(s) if _ADDRESS.search(e["keys"])]
        missing = _missing(found)
        return () if any(e.rank in missing for e in found) else found

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks whose addresses are missing."""
        return _missing(events)

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Who did not come."""
        ranks = _missing(events)
        return f"{w.name_ranks(ranks)} did not come to init_process_group: the others waited for {w.verb(ranks, 'its address', 'their addresses')}"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What the key says."""
        return f"The key that they waited for, {events[0]['keys'].strip()}, is where that rank publishes its address. What kept it is not in this log."


def _missing(events: Sequence[LogEvent]) -> tuple[int, ...]:
    return tuple(sorted({int(m["rank"]) for e in events for m in _ADDRESS.finditer(e["keys"])}))
