"""The cases of master-name."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "master-name": (
        Fires(
            readings_case(
                read("network.master node0", addresses="10.0.0.1", is_own=True),
                read("network.master node0", rank=2, addresses="", error="Name or service not known"),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("setup.job here", nodes=2),
                read("network.master node0", addresses="127.0.1.1", is_own=True, is_loopback=True),
                read("network.master node0", rank=2, addresses="127.0.1.1", is_own=True, is_loopback=True),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("network.master node0", families="IPv6", own_families="IPv4", addresses="fd00::1", is_own=False)
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("network.master node0", addresses="10.0.0.1", is_own=True),
                read("network.master node0", rank=2, addresses="10.0.0.1"),
                read("network.master node0", rank=4, addresses="10.7.0.1"),
                world=6,
            ),
            (4,),
        ),
        Quiet(
            readings_case(
                read("network.master node0", addresses="127.0.1.1", is_own=True, is_loopback=True),
                read("network.master node0", rank=2, addresses="10.0.0.1"),
            ),
            "the master may know itself as 127.0.1.1: its store listens on all addresses",
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=1),
                read("network.master localhost", addresses="127.0.0.1", is_own=True, is_loopback=True),
            ),
            "one node",
        ),
        Quiet(
            readings_case(
                read("network.master node0", addresses="10.0.0.1 fd00::1", is_own=True),
                read("network.master node0", rank=2, addresses="10.0.0.1", took_s=0.2),
            ),
            "they have an address in common",
        ),
    ),
}
