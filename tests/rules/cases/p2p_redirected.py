"""The cases of p2p-redirected."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "p2p-redirected": (
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
    ),
}
