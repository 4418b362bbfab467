"""The cases of driver-too-old."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "driver-too-old": (
        Fires(
            readings_case(
                read("versions.component torch CUDA", version="13.0"),
                read("versions.component NVIDIA driver", version="570.86.15"),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("versions.component torch CUDA", version="12.8"),
                read("versions.component NVIDIA driver", version="535.161.08"),
            ),
            "within a major version an older driver is enough",
        ),
        Quiet(
            readings_case(
                read("versions.component torch CUDA", version="13.0"),
                read("versions.component NVIDIA driver", version="570.86.15"),
                read("versions.component CUDA compatibility", version="580.95.05"),
            ),
            "the compatibility package is on LD_LIBRARY_PATH",
        ),
        Quiet(readings_case(read("versions.component torch CUDA", version=None)), "torch without CUDA"),
    ),
}
