"""The cases of kernel-link-flaps."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "kernel-link-flaps": (
        Fires(
            readings_case(
                read("setup.job here", nodes=2),
                read("machine.kernel_log", rank=2, messages=90),
                read("machine.kernel kernel.link_down", rank=2, name="ens1f0np0", count=5, age_s=300, text="Link down"),
            ),
            (2,),
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=2),
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.link_down", name="eth0", count=1, age_s=300, text="Link is Down"),
            ),
            "once, as at every start",
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=1),
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.link_down", name="eth0", count=9, age_s=300, text="Link is Down"),
            ),
            "a laptop that is carried about: no other node is needed",
        ),
    ),
}
