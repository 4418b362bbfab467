"""Rule: a file system does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of


class FolderHangs(ReadingRule):
    """A folder that the job uses is on a file system that does not answer.

    What it detects:
        Looking at the folder does not come back within seconds, as on a network mount whose server is gone.

    Why it hangs:
        Every process that touches it waits in the kernel, where no signal ends it; its peers wait for it.

    How to confirm:
        `timeout 5 stat -f FOLDER`; processes in state D; "server not responding" in dmesg.

    How to fix:
        Bring the server back, or unmount with `umount -l` and mount anew; leave the node out until then.

    Sources:
        nfs(5), hard mounts.
    """

    id = "folder-hangs"
    cause = "rank-frozen"
    reads = ("machine.folder",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.folder /data", role="named", hangs=True, problem="no answer within 2 s"),
                read("machine.folder /data", rank=2, role="named", exists=True, is_writable=True, free_bytes=1 << 40),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.folder /data", role="named", exists=True, is_writable=True, free_bytes=1 << 40)
            ),
            "it answers",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each folder."""
        stuck = [r for r in s.readings.of("machine.folder") if r["hangs"]]
        for folder in dict.fromkeys(r.subject for r in stuck):
            readings = [r for r in stuck if r.subject == folder]
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"the file system of {folder} does not answer on {hosts_of(readings)}",
                confidence=0.95 if any(r["role"] == "named" for r in readings) else 0.9,
                culprit_ranks=ranks_of(readings),
                because="A process that touches it waits in the kernel, and cannot be ended.",
                evidence=cite(readings),
                fixes=(
                    Fix(
                        "Look at its server; mount it anew, or leave the node out",
                        command=f"grep ' {folder}' /proc/mounts; dmesg | tail; umount -l MOUNT && mount MOUNT",
                        verify=f"timeout 5 stat -f {folder} comes back",
                        undo="not needed",
                    ),
                ),
            )
