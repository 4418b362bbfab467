"""The cases of shm-leftovers."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "shm-leftovers": (
        Fires(
            readings_case(
                read(
                    "machine.shm_leftovers /dev/shm",
                    count=3,
                    bytes=6 << 30,
                    size_bytes=64 << 30,
                    newest_age_s=9000,
                    names="torch_811_1_0 torch_811_2_0 nccl-a1B2c3",
                )
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.shm_leftovers /dev/shm", count=1, bytes=4096, size_bytes=64 << 30, names="torch_811_1_0")
            ),
            "a page that nobody misses",
        ),
    ),
}
