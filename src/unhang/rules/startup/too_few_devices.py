"""Rule: more ranks on a host than devices that they see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of
from unhang.rules.startup.mig_mode import on_gloo


class TooFewDevices(ReadingRule):
    """A host has more ranks than devices, or a rank sees none for its number.

    What it detects:
        Ranks per host (or `--plan gpus=N`) against the devices that are there; a rank whose local number is not below the number
        of devices that it sees, or that sees none while others do.

    Why it hangs:
        That rank fails with "invalid device ordinal" in the start, or shares a device, which NCCL refuses; the others wait for it.

    How to confirm:
        `python -c "import torch; print(torch.cuda.device_count())"` with the environment of that rank.

    How to fix:
        As many ranks per node as devices (`--nproc-per-node`, `--ntasks-per-node`), or ask the scheduler for more devices.

    Sources:
        CUDA programming guide, CUDA_VISIBLE_DEVICES; torch.cuda.set_device.
    """

    id = "too-few-devices"
    cause = "device-mapping"
    reads = ("devices.visible", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, local_rank=r, own="GPU-0") for r in (0,)],
                read("setup.job plan", ranks_per_node=8, gpus_per_node=8, world_size=32),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                [
                    read(
                        "devices.visible",
                        rank=r,
                        count=2,
                        present=2,
                        local_rank=r,
                        host="node0",
                        own=f"GPU-{r}" if r < 2 else None,
                    )
                    for r in range(4)
                ],
                read("setup.job here", ranks_per_node=4, world_size=4),
            ),
            (2, 3),
        ),
        Fires(
            readings_case(
                read("devices.visible", rank=0, count=8, present=8, local_rank=0, own="GPU-0"),
                read("devices.visible", rank=1, count=0, present=8, local_rank=1, is_hidden=True),
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            (1,),
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, local_rank=r, own=f"GPU-{r}") for r in range(2)],
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            "each rank is given a device of its own",
        ),
        Quiet(
            readings_case(
                [
                    read("devices.visible", rank=r, count=1, present=1, local_rank=r, own="GPU-0", backend="gloo")
                    for r in range(2)
                ],
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            "a job without devices",
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=0, present=1, local_rank=r, is_hidden=True) for r in range(2)],
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            "all devices are hidden from all ranks: the job is meant to run without",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for ranks that have no device, else one for the plan."""
        seen = s.readings.of("devices.visible")
        if on_gloo(s) or all(r["is_hidden"] for r in seen):
            return
        planned = [j for j in s.readings.of("setup.job", subject="plan") if j["gpus_per_node"]]
        if planned:
            needed = int(planned[0].number("gpus_per_node") or 0)
            first = [r for r in seen if r["local_rank"] == 0]
            short = [r for r in first if (r.number("present") or 0) < needed]
            if short:
                least = min(int(r.number("present") or 0) for r in short)
                title = f"the plan has {needed} devices on each node, {hosts_of(short)} has {least}"
                yield self._finding(s, title, 0.92, [planned[0], *short], ranks_of(short))
            return
        without = [r for r in seen if r["own"] is None and not r["problem"]]
        if without:
            told = without[0]
            title = (
                f"rank {told.rank} on {hosts_of([told])} has local rank {told['local_rank']} and sees {told['count']} "
                f"device{'' if told['count'] == 1 else 's'}"
            )
            more = f"; {len(without) - 1} more like it" if len(without) > 1 else ""
            is_meant = any(r["backend"] == "nccl" or r["value"] for r in without)
            yield self._finding(s, title + more, 0.93 if is_meant else 0.85, without, ranks_of(without))

    def _finding(
        self, s: Situation, title: str, confidence: float, found: list[Reading], ranks: tuple[int, ...]
    ) -> Finding:
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=title,
            confidence=confidence,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks),
            because="Each rank needs a device of its own; by convention it takes the one of its local rank.",
            evidence=cite(found),
            fixes=(
                Fix(
                    "As many ranks per node as devices",
                    command="torchrun --nproc-per-node=gpu ...   # or srun --ntasks-per-node=N --gpus-per-node=N",
                    verify="unhang check with the new numbers: no such finding",
                    undo="restore the number",
                ),
                Fix(
                    "If the job uses no devices, say so",
                    command="unhang check --backend gloo",
                    verify="the finding is gone",
                    undo="leave the option out",
                ),
            ),
        )
