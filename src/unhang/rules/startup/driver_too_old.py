"""Rule: torch was built for a newer CUDA than the driver supports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.probe.packages import as_numbers
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

# The oldest driver for Linux on which programs of a major version of CUDA run.
OLDEST_DRIVER: Mapping[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580"}


class DriverTooOld(ReadingRule):
    """The driver of a host is older than the CUDA that torch was built for needs.

    What it detects:
        The CUDA version of torch against the driver: 11 needs 450.80.02, 12 needs 525.60.13, 13 needs 580. Where the libraries of the
        compatibility package are in use it says nothing.

    Why it hangs:
        torch finds no device on that host ("the NVIDIA driver on your system is too old"): its ranks fail in the start, or run
        without device, and the others wait for them.

    How to confirm:
        `nvidia-smi | head -4; python -c "import torch; print(torch.version.cuda, torch.cuda.is_available())"` on that host.

    How to fix:
        A newer driver, a torch that was built for an older CUDA, or the package cuda-compat (for data centre devices).

    Sources:
        NVIDIA, CUDA compatibility: minor version compatibility, minimum required driver versions.
    """

    id = "driver-too-old"
    cause = "version-mismatch"
    reads = ("versions.component",)
    EXAMPLES: ClassVar = (
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
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all ranks on such hosts."""
        of_rank: dict[int | None, dict[str, Reading]] = {}
        for reading in s.readings.of("versions.component"):
            of_rank.setdefault(reading.rank, {})[reading.subject] = reading
        bad = [found for found in of_rank.values() if _is_too_old(found)]
        if not bad:
            return
        driver, cuda = bad[0]["NVIDIA driver"], bad[0]["torch CUDA"]
        oldest = OLDEST_DRIVER[as_numbers(cuda.text("version"))[0]]
        drivers = [found["NVIDIA driver"] for found in bad]
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"torch for CUDA {cuda['version']} needs driver {oldest} or newer: {hosts_of(drivers)} has {driver['version']}",
            confidence=0.93,
            culprit_ranks=ranks_of(drivers),
            victim_ranks=s.others(ranks_of(drivers)),
            because="A driver runs programs of its own and older major versions of CUDA, not of newer ones.",
            evidence=cite([driver, cuda]),
            fixes=(
                Fix(
                    "A torch that was built for an older CUDA, or a newer driver",
                    command="pip install torch --index-url https://download.pytorch.org/whl/cu126   # on all nodes alike",
                    verify='python -c "import torch; assert torch.cuda.is_available()" on that host',
                    undo="pip install the old version",
                ),
            ),
        )


def _is_too_old(found: Mapping[str, Reading]) -> bool:
    if not {"NVIDIA driver", "torch CUDA"} <= set(found):
        return False
    compatible = found.get("CUDA compatibility")
    if compatible is not None and compatible["version"]:
        return False
    cuda, driver = (as_numbers(found[name].text("version")) for name in ("torch CUDA", "NVIDIA driver"))
    return bool(cuda and driver) and driver < as_numbers(OLDEST_DRIVER.get(cuda[0], ""))
