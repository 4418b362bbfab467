"""The cases of new-partner, transfer-mismatch."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_RING = {r: [f"send>{(r + 1) % 4}[8]@main:5", f"recv<{(r - 1) % 4}[8]@main:6"] * 4 for r in range(4)}

CASES = {
    "new-partner": (
        Fires(
            make_case(
                {**_RING, 2: [*_RING[2], "send>0[8]@main:5 !"], 3: [*_RING[3], "recv<2[8]@main:6 !"]}, backend="nccl"
            ),
            (2,),
            5,
        ),
        Quiet(
            make_case({**_RING, 3: [*_RING[3], "recv<2[8]@main:6 !"]}, backend="nccl"),
            "a peer that is late is the usual peer",
        ),
    ),
    "transfer-mismatch": (
        Fires(
            make_case(
                {
                    **_RING,
                    2: [*_RING[2], "send>3[9]@main:5 !"],
                    3: [*_RING[3], "send>0[8]@main:5", "recv<2[8]@main:6 !"],
                },
                backend="nccl",
            ),
            (2,),
            5,
        ),
        Quiet(
            make_case(
                {**_RING, 2: [*_RING[2], "send>3[8]@main:5 !"], 3: [*_RING[3], "recv<2[2x4]@main:6 !"]}, backend="nccl"
            ),
            "the same elements in another shape",
        ),
    ),
}
