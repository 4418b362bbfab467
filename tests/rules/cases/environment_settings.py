"""The cases of environment-settings."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

_PROCESS = "environment.process"

CASES = {
    "environment-settings": (
        Fires(
            readings_case(read(_PROCESS, variables=1), read("environment.variable NCCL_SOKET_IFNAME", value="eth0")),
            (0,),
        ),
        Fires(
            readings_case(
                [read(_PROCESS, rank=r, variables=1) for r in (0, 1)],
                [read("environment.variable TORCH_NCCL_BLOCKING_WAIT", rank=r, value="maybe") for r in (0, 1)],
            ),
            (0, 1),
        ),
        Quiet(
            readings_case(
                read(_PROCESS, variables=3),
                read("environment.variable OMP_NUM_THREADS", value="8"),
                read("environment.variable NCCL_DEBUG", value="WARN"),
                read("environment.variable LD_LIBRARY_PATH", value="/usr/local/cuda/lib64"),
            ),
            "settings that are fine",
        ),
        Quiet(readings_case(read(_PROCESS, variables=0)), "nothing is set"),
    ),
}
