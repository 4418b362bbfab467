"""Versions that are known to hang or to fail, each with the place where that was established."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unhang.probe.packages import as_numbers

ANY = ("", "")


@dataclass(frozen=True)
class BadVersions:
    """A set of versions that fails together.

    `versions`: component -> (first bad version, first good version after it); an empty text is no limit. `is_value`: component ->
    the value that it must have. `only_with`, `not_with`: a variable and the value with which alone, or without which, it fails.
    """

    versions: Mapping[str, tuple[str, str]]
    symptom: str
    remedy: str
    source: str
    confidence: float
    is_value: Mapping[str, str] | None = None
    only_with: tuple[str, str] = ANY
    not_with: tuple[str, str] = ANY

    def matches(self, found: Mapping[str, str], settings: Mapping[str, str]) -> bool:
        """Whether a rank with these versions and variables is one that fails."""
        if not all(_between(found.get(name, ""), *limits) for name, limits in self.versions.items()):
            return False
        if any(found.get(name) != value for name, value in (self.is_value or {}).items()):
            return False
        if self.only_with != ANY and settings.get(self.only_with[0]) != self.only_with[1]:
            return False
        return self.not_with == ANY or settings.get(self.not_with[0]) != self.not_with[1]


def _between(version: str, first: str, good: str) -> bool:
    found = as_numbers(version)
    return bool(found) and found >= as_numbers(first) and (not good or found < as_numbers(good))


KNOWN = (
    BadVersions(
        {"torch": ("2.7.0", "2.7.1"), "NCCL": ("2.26", "2.27")},
        "init_process_group(device_id=...) makes communicators that do not block, and these hang at random",
        "torch 2.7.1 or newer, or TORCH_NCCL_USE_COMM_NONBLOCKING=0",
        "pytorch/pytorch issue 153960, pull request 154055",
        0.8,
        not_with=("TORCH_NCCL_USE_COMM_NONBLOCKING", "0"),
    ),
    BadVersions(
        {"NCCL": ("2.29.2", "2.29.3")},
        "a regression that hangs; 2.29.3 was released to mend it",
        "NCCL 2.29.3 or newer",
        "pytorch/pytorch pull request 174338",
        0.8,
    ),
    BadVersions(
        {"NCCL": ("2", "2.29.3")},
        "builds by gcc before 10 lose operations of the proxy on ARM: collectives between nodes stop without an error",
        "NCCL 2.29.3 or newer",
        "NCCL release notes 2.29.3; marin-community/marin issue 7344",
        0.72,
        is_value={"processor": "aarch64"},
    ),
    BadVersions(
        {"NCCL": ("2.14", "2.17")},
        "collectives between nodes hang with CUDA_LAUNCH_BLOCKING=1",
        "unset CUDA_LAUNCH_BLOCKING, or NCCL 2.17 or newer",
        "NVIDIA/nccl issue 750, pull request 774; pytorch/pytorch pull request 97843",
        0.92,
        only_with=("CUDA_LAUNCH_BLOCKING", "1"),
    ),
    BadVersions(
        {"torch": ("1", "2.3"), "numpy": ("2", "")},
        "torch cannot use this numpy: from_numpy, and loaders that make arrays, raise 'Numpy is not available'",
        "pip install 'numpy<2', or torch 2.3 or newer",
        "pytorch/pytorch issues 107302 and 132179",
        0.9,
    ),
)
