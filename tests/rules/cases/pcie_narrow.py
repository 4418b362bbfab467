"""The cases of pcie-narrow."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "pcie-narrow": (
        Fires(
            readings_case(
                [
                    read(
                        f"devices.device GPU {i}",
                        uuid=f"GPU-{i}",
                        name="H100",
                        pcie_width=8 if i == 2 else 16,
                        max_pcie_width=16,
                    )
                    for i in range(4)
                ],
                [read("devices.visible", rank=r, own=f"GPU-{r}", host="node0", present=4) for r in range(4)],
            ),
            (2,),
        ),
        Quiet(
            readings_case(
                [
                    read(
                        f"devices.device GPU {i}",
                        uuid=f"GPU-{i}",
                        name="RTX 4090",
                        pcie_width=8,
                        max_pcie_width=16,
                        pcie_gen=4 if i else 1,
                        max_pcie_gen=4,
                        performance_state=0 if i else 8,
                    )
                    for i in range(4)
                ],
            ),
            "all slots are alike, and a link is slow because it is idle",
        ),
        Quiet(
            readings_case(read("devices.device GPU 0", name="RTX 4070 Laptop", pcie_width=8, max_pcie_width=16)),
            "one device: there is nothing to compare it with",
        ),
    ),
}
