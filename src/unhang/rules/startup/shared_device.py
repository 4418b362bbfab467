"""Rule: two ranks of a host take the same device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Case, Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.environment.odd_ranks import nothing_to_compare
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of
from unhang.rules.startup.mig_mode import on_gloo


class SharedDevice(ReadingRule):
    """Two ranks of a host are given the same device.

    What it detects:
        The device of each rank by its uuid: the only one that it sees, else the one of its local rank. Certain where a rank sees
        no other and was given it; a risk where ranks see more and might choose otherwise, or might use none.

    Why it hangs:
        NCCL refuses two ranks on one device ("Duplicate GPU detected"); older versions wait for each other for ever.

    How to confirm:
        In each rank: CUDA_VISIBLE_DEVICES, LOCAL_RANK, and `torch.cuda.get_device_properties(0).uuid`.

    How to fix:
        Let all ranks of a node see all devices, and choose by LOCAL_RANK; or give each task its own by the scheduler.

    Sources:
        NCCL src/init.cc (Duplicate GPU).
    """

    id = "shared-device"
    cause = "device-mapping"
    reads = ("devices.visible",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [
                    read("devices.visible", rank=r, value="0", count=1, present=2, own="GPU-0", local_rank=r)
                    for r in (0, 1)
                ]
            ),
            (0, 1),
        ),
        Fires(
            readings_case(
                read(
                    "devices.visible",
                    rank=0,
                    value="0,1",
                    count=2,
                    present=2,
                    uuids="GPU-0 GPU-1",
                    own="GPU-0",
                    local_rank=0,
                ),
                read(
                    "devices.visible",
                    rank=1,
                    value="1,0",
                    count=2,
                    present=2,
                    uuids="GPU-0 GPU-1",
                    own="GPU-0",
                    local_rank=1,
                ),
            ),
            (0, 1),
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, own="GPU-0", host=f"node{r}") for r in (0, 1)]
            ),
            "names that are equal on different hosts",
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, own="GPU-0", backend="gloo") for r in (0, 1)]
            ),
            "a job without devices",
        ),
    )

    def missing(self, case: Case) -> str:
        """One rank has nothing to compare with."""
        return super().missing(case) or nothing_to_compare(case, "devices.visible")

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each device that is taken twice."""
        if on_gloo(s):
            return
        by_device: dict[tuple[str, str], list[Reading]] = {}
        for reading in s.readings.of("devices.visible"):
            if reading["own"]:
                by_device.setdefault((reading.host, reading.text("own")), []).append(reading)
        for (host, uuid), sharing in by_device.items():
            ranks = ranks_of(sharing)
            if len(ranks) < 2:
                continue
            is_certain = sum(r["count"] == 1 and _uses_devices(r) for r in sharing) > 1
            told = ", ".join(
                f"rank {r.rank}: {r['variable']}={r['value']}" for r in sharing[:4] if r["value"] is not None
            )
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"ranks {', '.join(map(str, ranks))} on {host or 'this machine'} take the same device {uuid[:16]}",
                confidence=0.95 if is_certain else 0.8,
                culprit_ranks=ranks,
                victim_ranks=s.others(ranks),
                because=(f"{told}. " if told else "") + "NCCL refuses two ranks on one device.",
                evidence=cite(sharing),
                fixes=(
                    Fix(
                        "Let each rank choose by its local rank among all devices",
                        patch='# no CUDA_VISIBLE_DEVICES per process; torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
                        verify="unhang check --only devices on all ranks: no device is taken twice",
                        undo="restore the variable",
                    ),
                ),
            )


def _uses_devices(reading: Reading) -> bool:
    """Whether somebody chose devices for the rank, so that it is no job without."""
    return reading["value"] is not None or reading["backend"] == "nccl"
