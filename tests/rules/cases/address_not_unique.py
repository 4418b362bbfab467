"""The cases of address-not-unique."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "address-not-unique": (
        Fires(
            readings_case(
                read("network.choice gloo", how="host name", address="10.0.0.1", is_main=True),
                read(
                    "network.choice gloo",
                    rank=2,
                    how="host name",
                    asked="node1",
                    address="127.0.1.1",
                    is_loopback=True,
                    is_main=True,
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read(
                    "network.choice nccl",
                    rank=rank,
                    how="order",
                    interface="virbr0",
                    address="192.168.122.1",
                    is_main=True,
                    network_id=f"machine{rank}",
                )
                for rank in (0, 2)
            ),
            (0, 2),
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=1),
                read("network.choice gloo", how="host name", address="127.0.1.1", is_loopback=True, is_main=True),
            ),
            "loopback is enough on one node",
        ),
        Quiet(
            readings_case(
                read(
                    "network.choice gloo", rank=r, how="host name", address="10.0.0.1", network_id="same", is_main=True
                )
                for r in (0, 2)
            ),
            "two containers that share the network of their host",
        ),
    ),
}
