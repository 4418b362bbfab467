"""The cases of clock-skew."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "clock-skew": (
        Fires(
            readings_case(
                [
                    read("machine.clock_offset", rank=r, offset_s=3600.0 if r == 3 else 0.01, uncertainty_s=0.05)
                    for r in range(4)
                ]
            ),
            (3,),
        ),
        Fires(
            readings_case(
                [
                    read("machine.clock_offset", rank=r, host=f"node{r}", offset_s=-7.0 * r, uncertainty_s=0.05 * r)
                    for r in range(2)
                ]
            ),
            (),
        ),
        Fires(
            readings_case(
                [read("machine.clock_offset", rank=r, offset_s=-40.0 * (r > 0), uncertainty_s=0.05) for r in range(4)]
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                [read("machine.clock_offset", rank=r, offset_s=1.4 * (r == 3), uncertainty_s=0.9) for r in range(4)]
            ),
            "the meeting took too long to tell",
        ),
    ),
}
