"""Rule: the ranks have different versions of something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Case, Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.environment.odd_ranks import Difference, differences, headline, nothing_to_compare, shown, together
from unhang.rules.reading_rule import ReadingRule, cite

_WEIGHTS = {
    "torch": 0.95,
    "torch CUDA": 0.95,
    "torch HIP": 0.95,
    "torch revision": 0.92,
    "NCCL": 0.95,
    "preloaded NCCL": 0.95,
    "NCCL network plugin": 0.92,
    "NCCL on LD_LIBRARY_PATH": 0.75,
    "Python": 0.8,
    "numpy": 0.75,
    "NVIDIA driver": 0.72,
    "processor": 0.75,
    "kernel": 0.5,
    "C library": 0.55,
}
_FRAMEWORK, _PATCH = 0.85, 0.6


class VersionsDiffer(ReadingRule):
    """The ranks have different versions of torch, NCCL, a framework, Python or the driver.

    What it detects:
        Versions on all ranks, of what would be imported and loaded there; a package that some ranks have and others lack. Ranks that
        differ from the majority are named; a kernel or a C library of another version is a note.

    Why it hangs:
        Two versions may choose another protocol, another order of collectives or another size of buckets: one side waits for
        what the other never sends.

    How to confirm:
        On every node, in the job's environment: `pip freeze | sha256sum`; `python -m torch.utils.collect_env`.

    How to fix:
        One image or environment for all nodes; look which one is first on PYTHONPATH, LD_LIBRARY_PATH and LD_PRELOAD there.

    Sources:
        NCCL src/init.cc (Mismatched NCCL version detected).
    """

    id = "versions-differ"
    cause = "version-mismatch"
    reads = ("versions.component",)
    EXAMPLES: ClassVar = (
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
    )

    def missing(self, case: Case) -> str:
        """One rank has nothing to compare with."""
        return super().missing(case) or nothing_to_compare(case, "versions.component")

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all that differs on the same ranks."""
        subjects = dict.fromkeys(r.subject for r in s.readings.of("versions.component"))
        found = differences({name: s.readings.by_value("versions.component", name, "version") for name in subjects})
        for group in together(sorted(found, key=_weight, reverse=True)):
            weight, odd = _weight(group[0]), group[0].odd
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=headline(group),
                confidence=weight,
                culprit_ranks=odd,
                victim_ranks=s.others(odd) if odd and weight >= _FRAMEWORK else (),
                because=_because(weight),
                evidence=cite([r for d in group for r in d.cited]),
                fixes=(
                    Fix(
                        "One environment for all nodes",
                        command=f"pip install {_wanted(group)}   # there; or one image for all",
                        verify="unhang check --only versions on all ranks: no difference",
                        undo="pip install the old version there",
                    ),
                ),
            )


def _weight(difference: Difference) -> float:
    weight = _WEIGHTS.get(difference.what, _FRAMEWORK)
    if difference.what == "Python":
        minors = {".".join(str(value).split(".")[:2]) for value in difference.by_value}
        return weight if len(minors) > 1 else _PATCH
    return weight


def _because(weight: float) -> str:
    if weight >= _FRAMEWORK:
        return "All ranks of a job have to run the same libraries: what they send each other is not described, only counted."
    return "It is no fault by itself. If ranks behave differently, look here first."


def _wanted(group: list[Difference]) -> str:
    """What to install on the odd ranks."""
    packages = [d for d in group if d.what not in _WEIGHTS or d.what in ("torch", "numpy")]
    known = [d for d in packages if d.usual is not None and d.has_majority]
    return " ".join(f"{d.what}=={shown(d.usual)}" for d in known) or "-r requirements.txt"
