"""The cases of family-differs."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "family-differs": (
        Fires(
            readings_case(
                read("network.choice gloo", rank=0, address="10.0.0.1", family="IPv4", is_main=True),
                read("network.choice gloo", rank=2, address="10.0.0.2", family="IPv4", is_main=True),
                read("network.choice gloo", rank=4, address="fd00::3", family="IPv6", is_main=True),
                world=6,
            ),
            (4,),
        ),
        Quiet(
            readings_case(read("network.choice gloo", rank=r, address="fd00::1", family="IPv6") for r in (0, 2)),
            "IPv6 everywhere",
        ),
    ),
}
