"""The cases of locked-memory."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "locked-memory": (
        Fires(
            readings_case(read("machine.limit memlock", soft=8 << 20, hard=8 << 20, rdma_devices=8, gpus=8)),
            (0,),
        ),
        Quiet(readings_case(read("machine.limit memlock", soft=8 << 20, rdma_devices=0)), "no RDMA device"),
        Quiet(readings_case(read("machine.limit memlock", soft=None, rdma_devices=8)), "no limit"),
        Quiet(
            readings_case(read("machine.limit memlock", soft=8 << 20, rdma_devices=8, is_exempt=True)),
            "the capability exempts it",
        ),
    ),
}
