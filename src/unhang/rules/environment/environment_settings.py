"""Rule: variables of a rank are unknown, out of range, contradictory or harmful."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from unhang.analyze.env_judge import judge_settings
from unhang.analyze.situation import Situation
from unhang.model import Finding, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.read.environment.settings import Assignment, Settings
from unhang.read.environment.tables import in_scope
from unhang.rules.environment.environment_differs import differs_by_nature
from unhang.rules.reading_rule import ReadingRule, cite

_PROCESS = "environment.process"
_NAME = re.compile(r"[A-Za-z_]\w*")


class EnvironmentSettings(ReadingRule):
    """What `unhang env` says of a script, said of the environment in which the ranks would start.

    What it detects:
        Names that no library reads (misspelt, or of another version), values that are out of range or refused, variables that
        contradict each other or have no effect, and settings that are known to hang or to hide what went wrong.

    Why it hangs:
        It depends on the variable: the finding says it. A misspelt name is silently ignored.

    How to confirm:
        `unhang env --pid PID` of a rank; `unhang env --list NAME` says what a variable means.

    How to fix:
        What the finding names: another name or value, or none.

    Sources:
        The variables that torch, NCCL and gloo read, with their versions: `unhang env --list`.
    """

    id = "environment-settings"
    cause = "misconfigured-env"
    reads = (_PROCESS,)
    EXAMPLES: ClassVar = (
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
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """The findings of `unhang env` on each different environment; what several ranks have in common once."""
        found: dict[tuple[str, str], tuple[Finding, set[int]]] = {}
        for ranks, readings in _environments(s):
            set_here = [r for r in readings if in_scope(r.subject)]
            assignments = tuple(Assignment(r.subject, r.text("value"), told_by=r.where) for r in set_here)
            for finding in judge_settings([Settings("the environment", "process", assignments)]).findings:
                named = {name for line in finding.evidence for name in _NAME.findall(line.text.partition("=")[0])}
                evidence = cite([r for r in readings if r.subject in named])
                _, on = found.setdefault(
                    (finding.rule, finding.title), (replace(finding, evidence=evidence or finding.evidence), set())
                )
                on.update(ranks)
        for finding, on in found.values():
            yield replace(finding, rule=self.id, id="", culprit_ranks=tuple(sorted(on)))


def _environments(s: Situation) -> Iterator[tuple[tuple[int, ...], list[Reading]]]:
    """Each different environment, with the ranks that have it."""
    of_rank: dict[int, list[Reading]] = {r.rank: [] for r in s.readings.of(_PROCESS) if r.rank is not None}
    for reading in s.readings.of("environment.variable"):
        if reading.rank in of_rank:
            of_rank[reading.rank].append(reading)
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank, readings in of_rank.items():
        key = tuple((r.subject, r.text("value")) for r in readings if not differs_by_nature(r.subject))
        alike.setdefault(key, []).append(rank)
    for ranks in alike.values():
        yield tuple(ranks), of_rank[ranks[0]]
