"""The cases of interface-not-usable."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "interface-not-usable": (
        Fires(
            readings_case(
                read("network.interface eth0", rank=2, is_up=True, addresses="10.0.0.2"),
                read(
                    "network.choice gloo",
                    rank=2,
                    how="GLOO_SOCKET_IFNAME",
                    asked="ens5",
                    interface="ens5",
                    problem="absent",
                    is_main=True,
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read(
                    "network.choice nccl",
                    how="NCCL_SOCKET_IFNAME",
                    asked="ib",
                    interface="ib0",
                    problem="down",
                    is_main=True,
                )
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("network.choice gloo", how="GLOO_SOCKET_IFNAME", asked="eth0", interface="eth0", problem="")
            ),
            "the interface is there",
        ),
        Quiet(
            readings_case(read("network.choice nccl", how="order", asked="", problem="no address", is_main=True)),
            "no variable names anything",
        ),
    ),
}
