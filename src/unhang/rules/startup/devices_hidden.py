"""Rule: ranks of a host do not see each other's devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Case, Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.environment.odd_ranks import nothing_to_compare
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of
from unhang.rules.startup.mig_mode import on_gloo


class DevicesHidden(ReadingRule):
    """Each rank of a host sees its own device only.

    What it detects:
        Ranks of one host that see one device each, and not the same one, because of CUDA_VISIBLE_DEVICES.

    Why it hangs:
        It works with most versions. But CUDA cannot map the memory of a device that it does not see: some versions and libraries
        fail with "invalid device ordinal" or "peer access", and others take the slow way through the host; all call theirs cuda:0,
        so that a rank that uses `cuda:LOCAL_RANK` fails.

    How to confirm:
        NCCL_DEBUG=INFO: `via SHM` or `NET` between ranks of one host, where `via P2P` is expected.

    How to fix:
        Let every process of a node see all devices and choose with set_device(LOCAL_RANK): no variable per process; Slurm:
        `--gpus-per-node` in place of `--gpus-per-task`, or `--gpu-bind=none`.

    Sources:
        NCCL user guide, troubleshooting; Slurm documentation, --gpu-bind.
    """

    id = "devices-hidden"
    cause = "gpu-visibility-isolation"
    reads = ("devices.visible",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [
                    read(
                        "devices.visible",
                        rank=r,
                        variable="CUDA_VISIBLE_DEVICES",
                        value=str(r),
                        count=1,
                        present=2,
                        own=f"GPU-{r}",
                    )
                    for r in (0, 1)
                ]
            ),
            (0, 1),
        ),
        Quiet(
            readings_case([read("devices.visible", rank=r, count=2, present=2, own=f"GPU-{r}") for r in (0, 1)]),
            "all see all",
        ),
        Quiet(
            readings_case(
                [
                    read("devices.visible", rank=r, value="0", count=1, present=2, own=f"GPU-{r}", host=f"node{r}")
                    for r in (0, 1)
                ]
            ),
            "one rank on each host",
        ),
    )

    def missing(self, case: Case) -> str:
        """One rank has nothing to compare with."""
        return super().missing(case) or nothing_to_compare(case, "devices.visible")

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts."""
        hidden: list[Reading] = []
        seen = s.readings.of("devices.visible")
        for host in dict.fromkeys(r.host for r in seen):
            alone = [
                r for r in seen if r.host == host and r["count"] == 1 and (r.number("present") or 0) > 1 and r["own"]
            ]
            if len({r["own"] for r in alone}) > 1:
                hidden += alone
        if not hidden or on_gloo(s):
            return
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"ranks on {hosts_of(hidden)} see their own device only ({hidden[0]['variable']} differs between them)",
            confidence=0.6,
            culprit_ranks=ranks_of(hidden),
            because="Most versions manage with that. If the first collective fails with a peer or ordinal error, or is slow within "
            "a node, this is why; a program that uses cuda:LOCAL_RANK fails.",
            evidence=cite(hidden),
            fixes=(
                Fix(
                    "Let every rank of a node see all its devices",
                    setting="no CUDA_VISIBLE_DEVICES per process; Slurm: --gpus-per-node=N with --gpu-bind=none",
                    verify="unhang check --only devices: the finding is gone; NCCL_DEBUG=INFO shows via P2P",
                    undo="restore the setting",
                ),
            ),
        )
