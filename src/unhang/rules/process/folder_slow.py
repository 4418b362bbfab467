"""Rule: a folder for checkpoints is so slow that the other ranks will not wait long enough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_CHECKPOINT_BYTES, _TIMEOUT_S = 10e9, 600.0
_SLOW_MB_PER_S = _CHECKPOINT_BYTES / 1e6 / _TIMEOUT_S


class FolderSlow(ReadingRule):
    """Writing to a folder is so slow that a checkpoint takes longer than a collective may wait.

    What it detects:
        Sixteen megabytes at most, in parts, are written to the disk more slowly than 10 GB in ten minutes.

    Why it hangs:
        One rank saves, the others wait in the next collective, whose default limit with NCCL is ten minutes.

    How to confirm:
        `dd if=/dev/zero of=FOLDER/x bs=1M count=256 conv=fsync`, then remove the file.

    How to fix:
        A faster folder, and from there a copy; saving in the background; a longer timeout around the save alone.

    Sources:
        torch.distributed: the default timeout of NCCL groups is 10 minutes.
    """

    id = "folder-slow"
    cause = "slow-rank0-work"
    reads = ("machine.folder",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read(
                    "machine.folder /ckpt", role="named", exists=True, is_writable=True, write_mb_per_s=3.1, type="nfs4"
                )
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.folder /ckpt", role="named", exists=True, is_writable=True, write_mb_per_s=140.0)
            ),
            "an ordinary disk",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each folder."""
        slow = [r for r in s.readings.of("machine.folder") if (r.number("write_mb_per_s") or 1e9) < _SLOW_MB_PER_S]
        for folder in dict.fromkeys(r.subject for r in slow):
            readings = [r for r in slow if r.subject == folder]
            speed = min(r.number("write_mb_per_s") or 0.0 for r in readings)
            minutes = _CHECKPOINT_BYTES / 1e6 / max(speed, 0.01) / 60
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{folder} takes {speed:.3g} MB/s on {hosts_of(readings)}: {minutes:.0f} minutes for 10 GB",
                confidence=0.7,
                culprit_ranks=ranks_of(readings),
                because="Measured with 16 MB at most; large files may go faster. The other "
                "ranks wait for the one that saves, with NCCL ten minutes by default.",
                evidence=cite(readings),
                fixes=(
                    Fix(
                        "Save to a faster folder, or in the background",
                        patch="torch.distributed.checkpoint.async_save(...)",
                        verify=f"unhang check --folder {folder}, and the time of one save",
                        undo="save to the former folder",
                    ),
                ),
            )
