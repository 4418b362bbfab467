"""The cases of mig-mode."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "mig-mode": (
        Fires(
            readings_case(
                read("devices.device GPU 0", uuid="GPU-0", is_mig=True),
                read("devices.device GPU 1", uuid="GPU-1", is_mig=False),
                read("setup.job here", ranks_per_node=2, world_size=4),
            ),
            (0,),
        ),
        Quiet(
            readings_case(read("devices.device GPU 0", is_mig=True), read("setup.job here", world_size=1)),
            "one rank may use a slice",
        ),
        Quiet(
            readings_case(read("devices.device GPU 0", is_mig=False), read("setup.job here", world_size=8)),
            "whole devices",
        ),
    ),
}
