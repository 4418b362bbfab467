"""Rule: versions that are known to fail together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.bad_versions import KNOWN, BadVersions
from unhang.rules.reading_rule import ReadingRule, cite, ranks_of


def _rank(torch: str, nccl: str | None, numpy: str = "1.26.4", processor: str = "x86_64") -> list[Reading]:
    versions = {"torch": torch, "NCCL": nccl, "numpy": numpy, "processor": processor}
    return [read(f"versions.component {name}", version=version) for name, version in versions.items()]


class KnownBadVersions(ReadingRule):
    """Versions of torch, NCCL and numpy that are known to hang or fail together.

    What it detects:
        The versions of each rank against a short list of those whose fault was established in public, with the variables that
        bring it out or avoid it.

    Why it hangs:
        Each entry says it: a collective that never completes, or an exception on the first use.

    How to confirm:
        The source that is named describes the symptom; the same job passes with the version that mends it.

    How to fix:
        Change the version, or set the variable, that the finding names.

    Sources:
        One for each entry, in the finding.
    """

    id = "known-bad-versions"
    cause = "nccl-or-library-bug"
    reads = ("versions.component",)
    EXAMPLES: ClassVar = (
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
        Quiet(readings_case(_rank("2.7.1+cu126", "2.26.2", "2.1.0")), "the version that mends it"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each entry of the list."""
        versions: dict[int | None, dict[str, Reading]] = {}
        settings: dict[int | None, dict[str, str]] = {}
        for reading in s.readings.of("versions.component"):
            versions.setdefault(reading.rank, {})[reading.subject] = reading
        for reading in s.readings.of("versions.setting"):
            settings.setdefault(reading.rank, {})[reading.subject] = reading.text("value")
        for known in KNOWN:
            bad = [
                found
                for rank, found in versions.items()
                if known.matches({name: r.text("version") for name, r in found.items()}, settings.get(rank, {}))
            ]
            if bad:
                yield self._finding(known, [found[name] for found in bad for name in known.versions])

    def _finding(self, known: BadVersions, found: list[Reading]) -> Finding:
        told = " with ".join(dict.fromkeys(f"{r.subject} {r['version']}" for r in found[: len(known.versions)]))
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{told}: {known.symptom}",
            confidence=known.confidence,
            culprit_ranks=ranks_of(found),
            because=f"Established in {known.source}.",
            evidence=cite(found),
            fixes=(
                Fix(
                    "Use versions without that fault",
                    setting=known.remedy,
                    verify="unhang check --only versions: no such finding",
                    undo="install the old version again, or unset the variable",
                ),
            ),
        )
