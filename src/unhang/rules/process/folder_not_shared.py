"""Rule: ranks do not see the same files in a folder that should be common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of


class FolderNotShared(ReadingRule):
    """What the first rank writes into a folder is not there for another.

    What it detects:
        The first rank writes a small file into each folder that was named; another rank does not see it within seconds.

    Why it hangs:
        A rank that resumes from a checkpoint or waits for a file that another has written fails, or waits for ever; a rank
        that finds an old checkpoint begins at another step than its peers.

    How to confirm:
        `touch FOLDER/x` on one host, `ls FOLDER/x` on the other; `findmnt -T FOLDER` on both.

    How to fix:
        The same network file system on all nodes, mounted at the same place and into each container.

    Sources:
        torch.distributed.checkpoint writes from all ranks into one folder, and reads it so.
    """

    id = "folder-not-shared"
    cause = "filesystem-race"
    reads = ("machine.folder_shared",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.folder_shared /ckpt", sees=True, writer_rank=0),
                read("machine.folder_shared /ckpt", rank=2, sees=False, writer_rank=0),
            ),
            (2,),
        ),
        Quiet(
            readings_case([read("machine.folder_shared /ckpt", rank=r, sees=True, writer_rank=0) for r in range(4)]),
            "all see it",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each folder."""
        blind = [r for r in s.readings.of("machine.folder_shared") if r["sees"] is False]
        for folder in dict.fromkeys(r.subject for r in blind):
            readings = [r for r in blind if r.subject == folder]
            ranks = ranks_of(readings)
            told = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{' ...' * (len(ranks) > 8)}"
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{told} on {hosts_of(readings)} does not see what rank {readings[0]['writer_rank']} writes into {folder}",
                confidence=0.85,
                culprit_ranks=ranks,
                because="The same path leads to another file system there. Where each node is meant to have files of its own, "
                "this is right.",
                evidence=cite(readings),
                fixes=(
                    Fix(
                        "Mount the same file system on all nodes, and into each container",
                        command=f"findmnt -T {folder}   # on each node: the same source",
                        verify=f"unhang check --folder {folder} on all ranks",
                        undo="unmount it",
                    ),
                ),
            )
