"""Rule: traffic between devices is sent up to the processor, or through the IOMMU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of


class P2pRedirected(ReadingRule):
    """Devices that reach each other over PCIe do so through ACS redirection or a translating IOMMU.

    What it detects:
        Ports of PCIe switches above the devices that redirect requests (ACS), or an IOMMU that translates for the devices, on a
        machine that is not virtual and where pairs of devices have no NVLink, but a direct way over PCIe. In a virtual machine
        both are needed and are left alone.

    Why it hangs:
        Transfers go up to the root port, which may drop or misdirect them: NCCL's kernels wait for data that never comes. Where
        it works it is slow.

    How to confirm:
        `lspci -vvv | grep -i acsctl` shows `ReqRedir+`; one all-reduce of 8 MB on two devices hangs and passes with
        NCCL_P2P_DISABLE=1.

    How to fix:
        Turn ACS off on the bridges, `iommu=pt` on the kernel's command line, or the IOMMU off in the BIOS.

    Sources:
        NCCL user guide, troubleshooting: PCI Access Control Services; CUDA programming guide: IOMMU on Linux.
    """

    id = "p2p-redirected"
    cause = "p2p-acs-iommu"
    reads = ("devices.peers", "devices.pci")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("devices.peers", rank=2, pairs=6, nvlink_pairs=0, pcie_pairs=6, switch_pairs=6),
                read(
                    "devices.pci", rank=2, redirecting="0000:02:04.0 0000:02:08.0", iommu="identity", is_virtual=False
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("devices.peers", pairs=1, nvlink_pairs=0, pcie_pairs=1, switch_pairs=0),
                read("devices.pci", redirecting="", iommu="DMA-FQ", is_virtual=False),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("devices.peers", pairs=28, nvlink_pairs=28, pcie_pairs=0, switch_pairs=0),
                read("devices.pci", redirecting="0000:02:04.0", iommu="DMA-FQ", is_virtual=False),
            ),
            "devices that are joined by NVLink do not use PCIe among each other",
        ),
        Quiet(
            readings_case(
                read("devices.peers", pairs=6, nvlink_pairs=0, pcie_pairs=6, switch_pairs=6),
                read("devices.pci", redirecting="0000:02:04.0", iommu="DMA-FQ", is_virtual=True),
            ),
            "a virtual machine needs both",
        ),
        Quiet(
            readings_case(
                read("devices.peers", pairs=6, nvlink_pairs=0, pcie_pairs=6, switch_pairs=6),
                read("devices.pci", redirecting="", iommu="identity", is_virtual=False),
            ),
            "passthrough, and no port that redirects",
        ),
        Quiet(
            readings_case(
                read("devices.peers", pairs=1, nvlink_pairs=0, pcie_pairs=0, switch_pairs=0),
                read("devices.pci", redirecting="0000:02:04.0", iommu="DMA", is_virtual=False),
            ),
            "devices that do not reach each other over PCIe go through the host anyway",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for ACS, one for the IOMMU, each for all hosts."""
        direct = {r.host: r for r in s.readings.of("devices.peers") if r["pcie_pairs"]}
        buses = [r for r in s.readings.of("devices.pci") if r.host in direct and not r["is_virtual"]]
        acs = [r for r in buses if r["redirecting"] and direct[r.host]["switch_pairs"]]
        iommu = [r for r in buses if r not in acs and r.text("iommu").startswith("DMA")]
        for bad, what in ((acs, "PCIe switches redirect (ACS)"), (iommu, "the IOMMU translates")):
            if bad:
                yield self._finding([direct[r.host] for r in bad], bad, what)

    def _finding(self, peers: list[Reading], bad: list[Reading], what: str) -> Finding:
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{what} what devices send each other on {hosts_of(bad)}",
            confidence=0.75,
            culprit_ranks=ranks_of(bad),
            because="NCCL will use direct transfers over PCIe there. They may hang, be wrong, or be slow on such a path; whether "
            "they do depends on chipset and BIOS: run one all-reduce on these devices first.",
            evidence=cite([*bad, *peers]),
            fixes=(
                Fix(
                    "Send direct traffic the short way",
                    command="setpci -v -s BRIDGE ECAP_ACS+0x6.w=0000   # each port named above; and iommu=pt on the kernel's command line",
                    verify="unhang check --only devices: no such finding; an all-reduce of 8 MB on two devices completes",
                    undo="restart the node: what setpci sets is lost then",
                ),
                Fix(
                    "Until then without direct transfers",
                    setting="NCCL_P2P_DISABLE=1",
                    verify="NCCL_DEBUG=INFO shows channels via SHM",
                    undo="unset NCCL_P2P_DISABLE: transfers within a node are slower with it",
                ),
            ),
        )
