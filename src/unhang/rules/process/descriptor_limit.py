"""Rule: the limit of open files is below what the job will need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import SHARE, needs_of
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of


class DescriptorLimit(ReadingRule):
    """A process may open fewer files than it will need at least.

    What it detects:
        The soft limit (`ulimit -n`) against a forecast for rank 0: its own files, pipes and queues of its loader workers, one
        tensor in each batch that is loaded ahead, a connection for each rank to the store and to each peer.

    Why it hangs:
        The loader dies, or a connection is refused in the middle of the set-up; the peers wait.

    How to confirm:
        `ulimit -n` in the launched process, and `ls /proc/PID/fd | wc -l` of a rank that runs.

    How to fix:
        Raise the soft limit where the ranks are started; share tensors through the file system.

    Sources:
        Measured with torch 2.13: 4 descriptors for each worker, one for each tensor that is shared; PyTorch documentation,
        multiprocessing: sharing strategies.
    """

    id = "descriptor-limit"
    cause = "fd-exhaustion"
    reads = ("machine.limit", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.limit nofile", soft=128, hard=4096, open=6),
                read("setup.job here", ranks_per_node=1, workers=16, world_size=2),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.limit nofile", soft=1 << 20, hard=1 << 20, open=6),
                read("setup.job plan", ranks_per_node=8, world_size=2048, workers=8, nofile=1024),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.limit nofile", soft=1024, hard=4096, open=6),
                read("setup.job here", ranks_per_node=8, workers=8, world_size=16),
            ),
            "the usual limit is enough for two nodes",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all ranks whose limit is too low."""
        short = []
        for reading in s.readings.of("machine.limit", subject="nofile"):
            needs = needs_of(s, reading)
            limit = needs.planned("nofile") or reading.number("soft")
            if limit is not None and needs.files > SHARE * limit:
                short.append((needs.files / limit, reading, needs, limit))
        if not short:
            return
        ratio, _, needs, limit = max(short, key=lambda x: x[0])
        readings = [reading for _, reading, _, _ in short]
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"a process may open {limit:g} files {needs.place('nofile', readings)}, and needs about {needs.files}",
            confidence=0.92 if ratio > 1 else 0.75,
            culprit_ranks=ranks_of(readings),
            because=f"Counted for rank 0 of {needs.world} with {needs.workers or 0} workers, one tensor in each batch; more "
            "tensors, more groups and NCCL's channels come on top.",
            evidence=cite([needs.job, *readings]),
            fixes=(
                Fix(
                    "Raise the soft limit where the ranks are started",
                    command='ulimit -n "$(ulimit -Hn)"   # docker run --ulimit nofile=1048576; LimitNOFILE= in a unit',
                    verify="unhang check names no limit of files",
                    undo=f"ulimit -n {limit:g}",
                ),
                Fix(
                    "Share tensors without descriptors",
                    patch='torch.multiprocessing.set_sharing_strategy("file_system")',
                    verify="ls /proc/PID/fd | wc -l stays flat",
                    undo='set_sharing_strategy("file_descriptor")',
                ),
            ),
        )
