"""The cases of few-cores."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "few-cores": (
        Fires(
            readings_case(
                read("machine.cores", cpus="0-7", count=8, online=8),
                read("setup.job plan", ranks_per_node=8, workers=6, threads=1, world_size=8),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                [read("machine.cores", rank=r, cpus="0", count=1, online=64) for r in (0, 1)],
                [read("setup.job here", rank=r, ranks_per_node=2, threads=1, world_size=4) for r in (0, 1)],
            ),
            (0, 1),
        ),
        Quiet(
            readings_case(
                read("machine.cores", cpus="0-1", count=2, online=2),
                read("setup.job here", ranks_per_node=4, threads=1, world_size=4),
            ),
            "a small machine on which four ranks are tried",
        ),
        Quiet(
            readings_case(
                read("machine.cores", cpus="0-7", count=8, online=8), read("setup.job here", ranks_per_node=1)
            ),
            "one process takes all cores",
        ),
        Quiet(
            readings_case(
                [read("machine.cores", rank=r, cpus=f"{8 * r}-{8 * r + 7}", count=8, online=16) for r in (0, 1)],
                [read("setup.job here", rank=r, ranks_per_node=2, workers=7, world_size=2) for r in (0, 1)],
            ),
            "each rank has cores of its own",
        ),
    ),
}
