"""The cases of clock-jump."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "clock-jump": (
        Fires(readings_case(read("machine.clock", rank=2, jump_s=-3600.0)), (2,)),
        Quiet(readings_case(read("machine.clock", jump_s=0.001, is_synchronised=False)), "no time server, but even"),
    ),
}
