"""The cases of known-bad-versions."""

from __future__ import annotations

from unhang.model import Reading
from unhang.testing import Fires, Quiet, read, readings_case


def _rank(torch: str, nccl: str | None, numpy: str = "1.26.4", processor: str = "x86_64") -> list[Reading]:
    versions = {"torch": torch, "NCCL": nccl, "numpy": numpy, "processor": processor}
    return [read(f"versions.component {name}", version=version) for name, version in versions.items()]


CASES = {
    "known-bad-versions": (
        Fires(readings_case(_rank("2.7.0+cu126", "2.26.2")), (0,)),
        Fires(readings_case(_rank("2.10.0", "2.29.2")), (0,)),
        Fires(readings_case(_rank("2.9.0", "2.28.9", processor="aarch64")), (0,)),
        Fires(readings_case(_rank("1.13.1", "2.14.3"), read("versions.setting CUDA_LAUNCH_BLOCKING", value="1")), (0,)),
        Fires(readings_case(_rank("2.2.2+cpu", None, "2.0.1")), (0,)),
        Quiet(
            readings_case(
                _rank("2.7.0+cu126", "2.26.2"), read("versions.setting TORCH_NCCL_USE_COMM_NONBLOCKING", value="0")
            ),
            "the variable avoids it",
        ),
        Quiet(readings_case(_rank("1.13.1", "2.14.3")), "the variable that brings it out is not set"),
        Quiet(readings_case(_rank("2.13.0+cpu", None, "2.4.6")), "a build without NCCL"),
        Quiet(readings_case(_rank("2.7.1+cu126", "2.26.2", "2.1.0")), "the version that fixes it"),
    ),
}
