"""Incidents inside whole logs: the verdict on the lines alone, whatever stands around them. `benchmarks/disguises.py` prints the figures."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import disguises

from tests.logs.disguise import ALL, sample
from tests.logs.incident import Disguise, Incident

FEW = 8
# (part of a disguise's name, incident): what that disguise cannot keep of these lines. Ranks that only processes of NCCL tell, beside the
# local ranks of other lines; a label of one machine where the lines name another; "Exception ignored in", which counts only where nobody's
# stacks are there, and before the timeouts; steps and a rank's traceback far from both ends of megabytes.
NOT_YET = {
    ("torchrun_tee", "048"),
    ("pdsh", "075"),
    ("stacked", "075"),
    ("torchrun_folder", "085"),
    ("pasted", "085"),
    ("grepped", "085"),
    ("huge_behind", "081"),
    ("huge_behind", "193"),
    ("huge_behind", "202"),
    # Pasted stacks that show something else than the end; ranks that only plain lines tell; an attempt in front.
    ("pasted", "532"),
    ("pasted", "619"),
    ("pasted", "649"),
    ("srun_node", "544"),
    ("srun_node", "608"),
    ("torchrun_tee", "545"),
    ("second_attempt", "203"),  # who is missing is told of the lines alone; not with the attempt in front
    ("second_attempt", "1242"),  # the amounts of both attempts stand side by side
    ("second_attempt", "514"),
    ("second_attempt", "518"),
    ("rotated", "605"),
    ("err_out", "541"),
    ("torchrun_folder", "544"),
    ("torchrun_folder", "646"),
}


def is_open(way: Disguise, name: str) -> bool:
    return any(part in way.name and name == number for part, number in NOT_YET)


@cache
def incidents() -> dict[str, Incident]:
    return {incident.name: incident for incident in disguises.incidents()}


@cache
def alone(name: str) -> disguises.Said:
    return disguises.alone(incidents()[name])


def differs(way: Disguise, names: list[str]) -> list[tuple[str, str, str]]:
    judged = [(name, disguises.disguised(incidents()[name], way)) for name in names if not is_open(way, name)]
    return [(name, str(alone(name)), str(said)) for name, said in judged if said != alone(name)]


@pytest.mark.parametrize("way", ALL, ids=lambda way: way.name)
def test_the_verdict_is_that_on_the_lines_alone(way: Disguise) -> None:
    names = [name for name, each in sample(sorted(incidents()), FEW) if each is way]
    assert names
    assert differs(way, names) == []


@pytest.mark.whole
@pytest.mark.parametrize("way", ALL, ids=lambda way: way.name)
def test_the_verdict_on_all_of_them(way: Disguise) -> None:
    assert differs(way, sorted(incidents())[:: way.every]) == []


def test_a_disguise_is_the_same_each_time() -> None:
    incident = incidents()["056"]
    again = Incident(incident.name, incident.log)
    assert [way.make(incident) for way in ALL] == [way.make(again) for way in ALL]


@pytest.mark.whole  # what is refused has not the verdict on the lines alone, either
@pytest.mark.parametrize("way", ALL, ids=lambda way: way.name)
def test_nothing_is_refused(way: Disguise) -> None:
    for name in ("003", "016", "077"):
        assert not disguises.disguised(incidents()[name], way).cause.startswith(disguises.REFUSED)
