"""Rule: the limit of processes and threads is below what the job will need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import SHARE, needs_of
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_OF_USER, _OF_GROUP, _OF_MACHINE = "ulimit -u", "pids.max of the container", "the machine's limit of threads"


class ProcessLimit(ReadingRule):
    """The user, the container or the machine may have fewer processes and threads than the job will start.

    What it detects:
        Ranks x (threads + workers) against what is left of `ulimit -u` (not for root), of pids.max of the control group, and of
        the kernel's own limits.

    Why it hangs:
        A rank cannot start a worker or a thread ("Resource temporarily unavailable") and fails; its peers wait.

    How to confirm:
        `ulimit -u`; pids.max and pids.current of the control group.

    How to fix:
        Raise the limit where the job is started; fewer workers and threads.

    Sources:
        fork(2), EAGAIN; Docker's --pids-limit and the kubelet's podPidsLimit.
    """

    id = "process-limit"
    cause = "user-exception"
    reads = ("machine.processes", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.processes", count_in_group=20, most_in_group=100, count=400, most_on_machine=32768),
                read("setup.job here", ranks_per_node=8, workers=8, world_size=8),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read(
                    "machine.processes", own_count=300, user_limit=400, is_exempt=True, most_on_machine=32768, count=600
                ),
                read("setup.job here", ranks_per_node=8, workers=8, world_size=8),
            ),
            "root is not bound by the limit of a user",
        ),
        Quiet(
            readings_case(
                read("machine.processes", own_count=1500, user_limit=8000, count=2000, most_on_machine=32768),
                read("setup.job here", ranks_per_node=1),
            ),
            "a desktop",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for the tightest limit."""
        short = []
        for reading in s.readings.of("machine.processes"):
            needs = needs_of(s, reading)
            for name, left in _left(reading):
                if needs.processes > SHARE * left:
                    short.append((needs.processes / max(left, 1), name, left, reading, needs))
        if not short:
            return
        ratio, name, left, _, needs = max(short, key=lambda x: x[0])
        readings = [x[3] for x in short if x[1] == name]
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{name} leaves room for {max(0, left):g} more processes and threads on {hosts_of(readings)}; "
            f"the job starts about {needs.processes}",
            confidence=0.9 if ratio > 1 else 0.75,
            culprit_ranks=ranks_of(readings),
            because=f"{needs.told}, each with the threads of torch; the kernel counts threads like processes.",
            evidence=cite(readings),
            fixes=(
                Fix(
                    "Raise the limit where the job is started",
                    setting="docker run --pids-limit=-1; kubelet: podPidsLimit; TasksMax= in a unit; nproc in limits.conf",
                    verify="unhang check names no limit of processes",
                    undo="restore the former limit",
                ),
            ),
        )


def _left(reading: Reading) -> Iterator[tuple[str, float]]:
    """What each limit leaves."""
    pairs = [(_OF_GROUP, "most_in_group", "count_in_group"), (_OF_MACHINE, "most_on_machine", "count")]
    if not reading["is_exempt"]:
        pairs.append((_OF_USER, "user_limit", "own_count"))
    for name, most, count in pairs:
        limit, used = reading.number(most), reading.number(count)
        if limit is not None and used is not None:
            yield name, limit - used
