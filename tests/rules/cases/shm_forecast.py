"""The cases of shm-forecast."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

_DEFAULT = 64 << 20

CASES = {
    "shm-forecast": (
        Fires(
            readings_case(
                read(
                    "machine.shared_memory /dev/shm", size_bytes=_DEFAULT, free_bytes=_DEFAULT, is_writable=True, gpus=8
                ),
                read("setup.job here", ranks_per_node=8, workers=4, world_size=16),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=8 << 30, free_bytes=8 << 30, is_writable=True),
                read("setup.job plan", ranks_per_node=8, workers=8, batch_bytes=100_000_000),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=8 << 30, free_bytes=8 << 30, is_writable=False),
                read("setup.job here", ranks_per_node=1, workers=2),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=_DEFAULT, free_bytes=_DEFAULT, is_writable=True),
                read("setup.job here", ranks_per_node=1, world_size=1),
            ),
            "one process, and nobody said that it loads data by workers",
        ),
        Quiet(
            readings_case(
                read(
                    "machine.shared_memory /dev/shm", size_bytes=16 << 30, free_bytes=16 << 30, is_writable=True, gpus=8
                ),
                read("setup.job plan", ranks_per_node=8, workers=8, batch_bytes=8_000_000),
            ),
            "room for all batches",
        ),
        Quiet(
            readings_case(
                read("machine.shared_memory /dev/shm", size_bytes=_DEFAULT, free_bytes=_DEFAULT, is_writable=True),
                read("setup.job here", ranks_per_node=4, workers=0, world_size=4),
            ),
            "no workers and no devices: nothing is put there",
        ),
    ),
}
