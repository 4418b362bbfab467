"""Rule: killed jobs have left files in /dev/shm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import ago, size
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_WORTH_TELLING, _MUCH = 0.05, 0.5


class ShmLeftovers(ReadingRule):
    """Processes that were killed have left files in shared memory, which take room until they are removed.

    What it detects:
        Files of torch (torch_PID_...) whose process is gone, and files of NCCL (nccl-...) that no process has mapped, older than
        ten minutes, which take more than a twentieth of /dev/shm.

    Why it hangs:
        What they take is missing for the next job: its workers or ranks are killed by SIGBUS.

    How to confirm:
        `ls -la /dev/shm`, and `fuser -v /dev/shm/*` for what is still in use.

    How to fix:
        Remove them, with no job of anybody running on the host.

    Sources:
        PyTorch documentation, multiprocessing: the file_system sharing strategy leaks where processes are killed.
    """

    id = "shm-leftovers"
    cause = "shm-too-small"
    reads = ("machine.shm_leftovers",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read(
                    "machine.shm_leftovers /dev/shm",
                    count=3,
                    bytes=6 << 30,
                    size_bytes=64 << 30,
                    newest_age_s=9000,
                    names="torch_811_1_0 torch_811_2_0 nccl-a1B2c3",
                )
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.shm_leftovers /dev/shm", count=1, bytes=4096, size_bytes=64 << 30, names="torch_811_1_0")
            ),
            "a page that nobody misses",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts; a note, unless they take most of the room."""
        found = [(r, _share(r.number("bytes"), r.number("size_bytes"))) for r in s.readings.of("machine.shm_leftovers")]
        full = [(r, share) for r, share in found if share >= _WORTH_TELLING]
        if not full:
            return
        readings = [r for r, _ in full]
        worst, share = max(full, key=lambda x: x[1])
        count, taken = int(worst.number("count") or 0), size(worst.number("bytes") or 0)
        names = " ".join(f"/dev/shm/{name}" for name in worst.text("names").split())
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{count} file{'s' * (count > 1)} of processes that are gone take {taken} of /dev/shm on {hosts_of(readings)}",
            confidence=0.8 if share >= _MUCH else 0.6,
            culprit_ranks=ranks_of(readings),
            because=f"Nobody removes them: their processes were killed; the youngest is from {ago(worst.number('newest_age_s') or 0)}.",
            evidence=cite(readings),
            fixes=(
                Fix(
                    "Remove them, with no job running on the host",
                    command=f"rm -- {names}"
                    + ("   # and the others: ls -la /dev/shm" if count > len(names.split()) else ""),
                    verify="df /dev/shm shows the room again",
                    undo="not needed: nobody can open them any more",
                ),
            ),
        )


def _share(part: float | None, whole: float | None) -> float:
    return part / whole if part and whole else 0.0
