"""The cases of versions-differ."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "versions-differ": (
        Fires(
            readings_case(
                [read("versions.component torch", rank=r, version="2.6.0" if r == 2 else "2.7.1") for r in range(4)]
            ),
            (2,),
        ),
        Fires(
            readings_case(
                [read("versions.component deepspeed", rank=r, version=None if r == 1 else "0.17.2") for r in range(3)],
                world=3,
            ),
            (1,),
        ),
        Fires(
            readings_case(
                [read("versions.component NCCL", rank=r, version="2.21.5" if r < 2 else "2.26.2") for r in range(4)]
            ),
            (),
        ),
        Quiet(
            readings_case(
                [read("versions.component torch", rank=r, version="2.7.1+cu126") for r in range(4)],
                [read("versions.component deepspeed", rank=r, version=None) for r in range(4)],
            ),
            "the same everywhere, and a package that nobody has",
        ),
    ),
}
