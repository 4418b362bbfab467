"""Rule: a device, its memory, its link or its slot is broken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.device.xid import XIDS, accuses_device
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import in_trouble
from unhang.rules.network.nodes import on_nodes

_NAMED = {
    "kernel.ecc_uncorrectable": 0.97,
    "kernel.ecc_rank": 0.97,
    "kernel.nvlink_uncorrectable": 0.9,
    "kernel.amd_uncorrectable": 0.9,
    "kernel.off_the_bus": 0.97,
    "kernel.device_lost": 0.93,
    "kernel.driver_init_failed": 0.8,
    "nccl.nvlink_p2p_disabled": 0.66,
}
_STORM = 3
_ALONE = 0.74  # what is no more certain than this a device may report and go on
_CAUSED_BY = re.compile(r"previous Xid (\d{1,3})")


class GpuHardware(LineRule):
    """A device failed: memory, NVLink, bus or the device as a whole.

    What it detects:
        Uncorrectable ECC errors, a device that has fallen off the bus or cannot be opened by nvidia-smi, Xid numbers of the
        driver that accuse the device, errors of the PCIe port together with a device that does not answer.

    Why it hangs:
        Kernels on the device never end, or its process dies; the peers wait in the collective with that rank.

    How to confirm:
        `nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT`, `dmesg -T | grep -E 'Xid|AER'`, `dcgmi diag -r 3`.

    How to fix:
        Reset or reboot, test each device alone, take the node out of the pool, have the device replaced.

    Sources:
        NVIDIA Xid catalogue; NVIDIA GPU memory error management.
    """

    id = "gpu-hardware"
    cause = "gpu-hardware"
    kinds: ClassVar = (*_NAMED, "kernel.xid", "kernel.sxid", "kernel.pcie_error", "kernel.smi_error_field")
    EXAMPLES: ClassVar = (
        Fires(log_case("[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"), (1,)),
        Fires(
            log_case("[131.2] NVRM: Xid (PCI:0000:44:00): 79, pid=9, GPU has fallen off the bus.\n"),
            (),
        ),
        Fires(
            log_case(
                "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n"
                "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0\n"
            ),
            (),
        ),
        Quiet(
            log_case("NVRM: Xid (PCI:0000:44:00): 31, pid=9, Ch 00000010, MMU Fault: ENGINE GRAPHICS\n"),
            "a page fault is the program's",
        ),
        Fires(
            log_case(
                "NVRM: Xid (PCI:0000:dc:00): 45, pid=18189, name=python3, Ch 00000001 caused by previous Xid 149\n"
            ),
            (),
        ),
        Quiet(
            log_case("NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)\n"),
            "an error of a link that was mended",
        ),
        Quiet(
            log_case(
                "NVRM: Xid (PCI:0000:10:1c): 63, pid=9, Row Remapper: New row marked for remapping\nstep 3 loss 0.1\n"
            ),
            "a row that is mended at the next reset",
        ),
        Quiet(
            log_case("pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0\n"),
            "corrected errors of the bus alone",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Lines that accuse the device; errors of its port only beside them."""
        least = 0.0 if in_trouble(s) else _ALONE
        told = [e for e in s.events.of(*_NAMED, "kernel.xid", "kernel.sxid") if _weight(e) > least]
        ports = s.events.of("kernel.pcie_error")
        fields = s.events.of("kernel.smi_error_field")
        if not told and not _is_storm(s, ports, fields):
            return ()
        return tuple(sorted((*told, *ports, *fields), key=lambda e: e.order))

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks on the device, where a line tells them. Of torch's own lines the rank may stand in the text only."""
        ranks = {e.rank for e in events if e.rank is not None}
        pids = {e.number("pid") for e in events} - {None}
        ranks |= {r for r, evidence in s.case.ranks.items() if evidence.identity.pid in pids}
        if not ranks:
            ranks = {r for e in events if "PG " not in e.text and (r := e.number("group_rank")) is not None}
        return tuple(sorted(ranks))

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """The clearest line decides."""
        best = max(_weight(e) for e in events)
        return best or 0.75

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What failed, and which device where it is told."""
        best = max(events, key=_weight)
        where = f" ({best['bus']})" if best["bus"] else ""
        if best.kind == "kernel.xid":
            code = _code(best) or 0
            return f"a GPU failed{where}{on_nodes([best])}: Xid {code}, {XIDS[code].meaning}"
        if best.kind.startswith("kernel.ecc"):
            return "the memory of a GPU has an uncorrectable ECC error"
        if best.kind == "kernel.nvlink_uncorrectable":
            return "an NVLink of a GPU has uncorrectable errors"
        if best.kind == "kernel.amd_uncorrectable":
            return "a GPU has an uncorrectable hardware error"
        if best.kind == "kernel.off_the_bus":
            return "a GPU has fallen off the bus"
        if best.kind == "nccl.nvlink_p2p_disabled":
            return f"GPUs {best['first']} and {best['second']} are joined by NVLink and cannot reach each other"
        return f"a GPU does not answer its driver{where}"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is no fault of the program."""
        text = "The driver reports the device itself; timeouts, NCCL errors and illegal accesses after it are consequences."
        if not any(e.rank is not None for e in events):
            text += " The lines do not tell which rank used it: compare the bus id with `nvidia-smi -L` of the node."
        return text

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return _FIXES


def _weight(event: LogEvent) -> float:
    if event.kind == "kernel.xid":
        code = _code(event)
        if code is None or not accuses_device(code) or "Nonfatal" in event["detail"]:
            return 0.0
        return XIDS[code].weight
    if event.kind == "kernel.sxid":
        return 0.85 if event["severity"] == "Fatal" else 0.0
    return _NAMED.get(event.kind, 0.0)


def _code(event: LogEvent) -> int | None:
    """The error number; of a clean-up (45) the number of what it cleans up after."""
    caused = _CAUSED_BY.search(event.text)
    return int(caused[1]) if caused else event.number("code")


def _is_storm(s: Situation, ports: Sequence[LogEvent], fields: Sequence[LogEvent]) -> bool:
    """Whether the bus is in trouble and the device shows it."""
    is_fatal = any(e["severity"].startswith("Uncorrect") for e in ports)
    shows = bool(fields) or s.events.has("kernel.device_unknown_error")
    return shows and (is_fatal or len(ports) >= _STORM)


_FIXES = (
    Fix(
        "Take the node out of the pool",
        command="scontrol update nodename=NODE state=drain reason='GPU failed'",
        verify="the same job runs on the other nodes",
        undo="scontrol update nodename=NODE state=resume",
    ),
    Fix(
        "Test each GPU of the node alone",
        command="dcgmi diag -r 3   # or: for g in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$g python one_gpu_step.py; done",
        verify="one device fails or shows ECC, remapping or Xid entries",
        undo="nothing is changed",
    ),
    Fix(
        "Reset or reboot, then have it replaced if it comes again",
        command="nvidia-smi --gpu-reset -i GPU",
        verify="nvidia-smi -q -d ECC,ROW_REMAPPER shows no pending or uncorrectable entries",
        undo="not needed",
    ),
    Fix(
        "Does not help: another batch size, a longer timeout, NCCL settings",
        setting="a broken device fails again, at another place",
        verify="the fault stays with the device when the ranks are moved",
    ),
)
