"""Rule: the store still holds another run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.startup.start_rule import StartRule, seen

_WAITING = (
    "Waiting in store based barrier to initialize process group for rank: {}, key: store_based_barrier_key:1 "
    "(world_size=4, worker_count={}, timeout=0:01:00)"
)
_BARRIERS = ("store.barrier_timed_out", "store.barrier_waiting")


class StaleStore(StartRule):
    """More processes joined the store than the world has: it still counts an earlier run, or left-over processes.

    What it detects:
        The barrier of the start counts more workers than the world size, though every rank is a valid one.

    Why it hangs:
        The barrier waits for a count that has already been passed, and never matches again.

    How to confirm:
        Left-over processes on the port (`ss -tnp 'sport = :PORT'`), an old file of the file store, or a restart by the launcher:
        a count that is a multiple of the world size is one more run per multiple.

    How to fix:
        End the left-over processes, take a new port or store file for each run; look at why the first attempt failed if there was
        a restart: that is where the trouble began.

    Sources:
        torch/distributed/distributed_c10d.py: the barrier adds one per process to a key of the store, and nothing resets it.
    """

    id = "stale-store"
    cause = "stale-store"
    kinds = _BARRIERS
    confidence = 0.88
    EXAMPLES: ClassVar = (
        Fires(log_case("\n".join(_WAITING.format(r, 16) for r in (0, 1))), ()),
        Fires(log_case(f"File already exists: output.tmp/dist_init\n{_WAITING.format(0, 8)}"), ()),
        Quiet(log_case(_WAITING.format(0, 3)), "not all came yet"),
        Quiet(log_case(_WAITING.format(5, 8)), "a rank outside of the world: two launchers"),
        Quiet(log_case(f"{_WAITING.format(0, 8)}\nepoch 1 step 1 loss 3.1"), "the start went on"),
    )
    fixes = (
        Fix(
            "End what is left of the earlier run, and meet at a new place",
            command="ps -ef | grep train.py   # end left-over pids one by one; then another --master-port, or remove the store's file",
            verify="the count of workers in the log stops at the world size",
            undo="restore the port",
        ),
        Fix(
            "See why the first attempt ended",
            command="torchrun --max-restarts 0 ...",
            verify="the log shows the first failure and no second start",
            undo="restore --max-restarts",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Counts beyond the world, of ranks within it."""
        counted = [e for e in seen(s, *_BARRIERS) if _excess(e) > 0]
        if any((e.rank or 0) >= (e.number("world_size") or 0) for e in counted):
            return ()
        return self.still_starting(s, counted)

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """More with a sign of the earlier run."""
        signs = s.events.has("store.file_exists", "elastic.restarting", "elastic.restart_count")
        return 0.95 if signs else self.confidence

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the counts."""
        worst = max(events, key=_excess)
        return f"{worst['joined']} processes joined a store for {worst['world_size']}: it still counts another run"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """How many runs."""
        worst = max(events, key=_excess)
        joined, world = worst.number("joined") or 0, worst.number("world_size") or 1
        runs = (
            f"{joined} is {joined // world} times {world}: the store was there for {joined // world} starts. "
            if joined % world == 0
            else ""
        )
        if s.events.has("store.file_exists"):
            runs += "The file of the store was there before this run. "
        return (
            f"{runs}The barrier of the start waits until exactly {world} have joined, which can no longer happen; a longer timeout does "
            "not help. If the launcher restarted the job, the first failure is the one to look for."
        )


def _excess(event: LogEvent) -> int:
    joined, world = event.number("joined"), event.number("world_size")
    return joined - world if joined is not None and world is not None else 0
