"""Rule: a folder that the job writes to is full, or cannot be written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import size
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_FULL, _NEARLY_FULL = 16 << 20, 1 << 30
_FEW_INODES = 100
_NO_SPACE = (28, 122)  # ENOSPC, EDQUOT


class FolderUnusable(ReadingRule):
    """A folder for reports, checkpoints or temporary files has no room, or cannot be written.

    What it detects:
        Its file system is full, out of inodes, mounted read-only, not writable for this user, or a small file cannot be
        written. Of folders that were not named, only those that are full.

    Why it hangs:
        The rank that saves fails, minutes or hours into the run; the others wait for it in the next collective.

    How to confirm:
        `df -h FOLDER; df -i FOLDER; touch FOLDER/x` on that host.

    How to fix:
        Make room, mount it writable, or name another folder.

    Sources:
        write(2): ENOSPC, EDQUOT, EROFS, EACCES.
    """

    id = "folder-unusable"
    cause = "user-exception"
    reads = ("machine.folder",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read(
                    "machine.folder /ckpt",
                    role="named",
                    exists=True,
                    is_writable=True,
                    free_bytes=0,
                    size_bytes=1 << 40,
                )
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.folder /ckpt", rank=2, role="named", exists=True, is_read_only=True, free_bytes=1 << 40)
            ),
            (2,),
        ),
        Fires(readings_case(read("machine.folder /etc/hosts", role="named", problem="Not a directory")), (0,)),
        Quiet(
            readings_case(
                read("machine.folder /work", role="current", exists=True, is_read_only=True, free_bytes=0, size_bytes=0)
            ),
            "code in an image that cannot be written",
        ),
        Quiet(
            readings_case(
                read(
                    "machine.folder /ckpt",
                    role="named",
                    exists=True,
                    is_writable=True,
                    free_bytes=1 << 40,
                    size_bytes=1 << 41,
                )
            ),
            "room enough",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each folder, the hosts that agree folded into one."""
        found: dict[tuple[str, str], tuple[float, list[Reading]]] = {}
        for reading in s.readings.of("machine.folder"):
            problem, confidence = _problem(reading)
            if problem:
                found.setdefault((reading.subject, problem), (confidence, []))[1].append(reading)
        for (folder, problem), (confidence, readings) in found.items():
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{folder} {problem} on {hosts_of(readings)}",
                confidence=confidence,
                culprit_ranks=ranks_of(readings),
                because="What is written there at the end of an epoch fails then: the rank that saves is gone, and the others wait.",
                evidence=cite(readings),
                fixes=(
                    Fix(
                        "Make room, or name another folder",
                        command=f"df -h {folder}; df -i {folder}; du -xsh {folder}/* | sort -h | tail",
                        verify=f"unhang check --folder {folder} names no trouble",
                        undo="not needed",
                    ),
                ),
            )


def _problem(reading: Reading) -> tuple[str, float]:
    """What is wrong with a folder, and how sure it is that it costs the job something; empty: nothing."""
    is_named = reading["role"] == "named"
    free, inodes, total = reading.number("free_bytes"), reading.number("inodes_free"), reading.number("size_bytes")
    if reading["hangs"]:
        return "", 0.0
    if reading["problem"]:
        return (f"cannot be used: {reading.text('problem')}", 0.92) if is_named else ("", 0.0)
    if is_named and reading["is_read_only"]:
        return "is on a file system that is mounted read-only", 0.93
    is_full = reading.number("write_errno") in _NO_SPACE or (free is not None and total and free < _FULL)
    if is_full and not reading["is_read_only"]:
        return f"is full ({size(free or 0)} free)", 0.93 if is_named else 0.75
    if inodes is not None and inodes < _FEW_INODES and not reading["is_read_only"]:
        return f"has room for {inodes:g} more files only (inodes)", 0.93 if is_named else 0.75
    if not is_named:
        return "", 0.0
    if reading["is_writable"] is False or reading["write_problem"]:
        return f"cannot be written ({reading.text('write_problem') or 'permission denied'})", 0.93
    if free is not None and total and free < min(_NEARLY_FULL, 0.05 * total):
        return f"is nearly full ({size(free)} free)", 0.75
    return "", 0.0
