"""Rule: another process already uses a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, named, users_of
from unhang.rules.process.forecast import size
from unhang.rules.reading_rule import ReadingRule, cite

_LITTLE_BYTES = 256 << 20
_MUCH = 0.5
_MOST_NAMED = 3


class DeviceOccupied(ReadingRule):
    """Before the job starts, another process computes on a device, or more than half of its memory is taken.

    What it detects:
        Processes that compute on a device and hold more than 256 MB of it, with their pids where they can be seen; devices that
        are more than half full, whoever holds it; a compute mode that lets no further process in.

    Why it hangs:
        The rank on that device runs out of memory, or is slower than all others; its peers wait for it. A process that an earlier
        run left behind holds its memory until it is ended.

    How to confirm:
        `nvidia-smi --query-compute-apps=gpu_uuid,pid,name,used_memory --format=csv`, on the host if the pids are not visible here.

    How to fix:
        End the processes of the earlier run by their pids; ask who else uses the node.

    Sources:
        NVML API reference, nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeMode.
    """

    id = "device-occupied"
    cause = "gpu-oom"
    reads = ("devices.device",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("devices.device GPU 1", uuid="GPU-1", memory_bytes=80 << 30, used_bytes=9 << 30),
                read("devices.process GPU 1", uuid="GPU-1", index=1, pid=4711, used_bytes=9 << 30, command="python"),
                read("devices.visible", rank=1, own="GPU-1", present=2),
            ),
            (1,),
        ),
        Fires(readings_case(read("devices.device GPU 0", memory_bytes=80 << 30, used_bytes=70 << 30)), (0,)),
        Fires(
            readings_case(
                read("devices.device GPU 0", compute_mode="prohibited", memory_bytes=80 << 30, used_bytes=0),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read(
                    "devices.device GPU 0",
                    uuid="GPU-0",
                    memory_bytes=8 << 30,
                    used_bytes=2 << 30,
                    compute_mode="default",
                ),
                read(
                    "devices.process GPU 0", uuid="GPU-0", index=0, pid=99, used_bytes=40 << 20, command="gnome-shell"
                ),
                read(
                    "devices.device GPU 1",
                    uuid="GPU-1",
                    memory_bytes=8 << 30,
                    used_bytes=1 << 20,
                    compute_mode="exclusive process",
                ),
            ),
            "a desktop, and a device that is free",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for devices that let nobody in, one for those that are in use."""
        devices = devices_of(s)
        using: dict[tuple[str, str], dict[str, Reading]] = {}
        for process in s.readings.of("devices.process"):
            if (process.number("used_bytes") or 0) >= _LITTLE_BYTES:
                key = (process.host, process.text("uuid"))
                using.setdefault(key, {})[process.text("pid")] = process
        shut = [d for d in devices if _is_shut(d, (d.host, d.text("uuid")) in using)]
        if shut:
            yield self._finding(s, shut, f"lets no further process in ({shut[0]['compute_mode']})", 0.92, [])
        used = [d for d in devices if d not in shut and ((d.host, d.text("uuid")) in using or _share(d) > _MUCH)]
        if used:
            found = [p for d in used for p in using.get((d.host, d.text("uuid")), {}).values()]
            who = ", ".join(f"{p.text('command') or 'process'} {p['pid']}" for p in found[:_MOST_NAMED])
            held = size(max(d.number("used_bytes") or 0 for d in used))
            yield self._finding(
                s, used, f"already in use{f' by {who}' if who else ''}: up to {held} taken", 0.78, found
            )

    def _finding(
        self, s: Situation, devices: Sequence[Reading], what: str, confidence: float, found: Sequence[Reading]
    ) -> Finding:
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{named(devices)}: {what}",
            confidence=confidence,
            culprit_ranks=users_of(s, devices),
            because="The job is not running yet, so it is none of its processes.",
            evidence=cite([*found, *devices]),
            fixes=(
                Fix(
                    "See whose it is, and end what an earlier run left behind",
                    command="nvidia-smi --query-compute-apps=gpu_uuid,pid,name,used_memory --format=csv; ps -o pid,user,lstart,cmd -p PID",
                    verify="unhang check --only devices: the device is free",
                    undo="a process that was ended has to be started again by its owner",
                ),
                Fix(
                    "Where the compute mode shuts others out",
                    command="nvidia-smi -i N -c DEFAULT",
                    verify="nvidia-smi -q -d COMPUTE: Default",
                    undo="nvidia-smi -i N -c EXCLUSIVE_PROCESS",
                ),
            ),
        )


def _share(device: Reading) -> float:
    total = device.number("memory_bytes")
    return (device.number("used_bytes") or 0) / total if total else 0.0


def _is_shut(device: Reading, is_used: bool) -> bool:
    mode = device["compute_mode"]
    return mode == "prohibited" or (is_used and mode in ("exclusive process", "exclusive thread"))
