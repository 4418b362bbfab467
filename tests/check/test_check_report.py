"""A check as text and as JUnit: skipped is never shown as passed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from unhang.check.areas import CheckOptions
from unhang.check.checking import amount, chosen, judged, parse_plan
from unhang.errors import WrongUsage
from unhang.model import Case
from unhang.show.preflight import render_check, skipped_areas, to_junit
from unhang.testing import read, readings_case

HEALTHY = readings_case(read("setup.job here", nodes=1, ranks_per_node=1), absent={"devices": "no driver is loaded"})
INCOMPLETE = readings_case(
    read("setup.job here", nodes=1),
    read("party.size", expected=4, came=3),
    read("party.missing 2", rank=2, reason="never came: nothing from it within 30 s"),
)


def test_a_clean_check_says_what_it_could_not_judge() -> None:
    text = render_check(judged(HEALTHY), HEALTHY, 1.5)
    assert text.startswith("CLEAN  4 ranks on 2 nodes: ")
    assert "SKIPPED: NOT JUDGED" in text
    assert judged(HEALTHY).exit_code == 0


def test_nothing_that_could_be_judged_is_not_clean() -> None:
    empty = Case(readings=(read("setup.other"),))
    diagnosis = judged(empty)
    assert diagnosis.exit_code == 3
    assert render_check(diagnosis, empty, 0.1).startswith("UNKNOWN")


def test_a_finding_comes_first_with_its_fix() -> None:
    diagnosis = judged(INCOMPLETE)
    lines = render_check(diagnosis, INCOMPLETE, 1.5).splitlines()
    assert lines[0].startswith("CHECK  1 finding (1 wrong) on 4 ranks on 2 nodes; ")
    assert "rank 2 never came  [rendezvous-incomplete]" in lines[2]
    assert diagnosis.exit_code == 1


def test_findings_of_a_check_are_no_consequences_of_each_other() -> None:
    both = readings_case(*INCOMPLETE.readings, read("party.unreachable h:1", rank=1, is_holder=False, reason="refused"))
    assert len(judged(both).findings) == 2
    assert [f.consequence_of for f in judged(both).findings] == [None, None]


def test_junit_tells_failed_from_skipped() -> None:
    suite = ElementTree.fromstring(to_junit(judged(INCOMPLETE), 1.5))
    cases = {case.attrib["name"]: case for case in suite}
    failure = cases["rank-never-came"].find("failure")
    assert failure is not None
    assert failure.attrib == {"message": "rank 2 never came", "type": "rendezvous-incomplete"}
    assert int(suite.attrib["tests"]) == len(cases)
    assert int(suite.attrib["skipped"]) == sum(case.find("skipped") is not None for case in suite)
    alone = {case.attrib["name"]: case for case in ElementTree.fromstring(to_junit(judged(HEALTHY), 1.5))}
    skipped = alone["rank-never-came"].find("skipped")
    assert skipped is not None
    assert "party.size" in skipped.attrib["message"]


def test_an_area_of_which_no_rule_could_judge_counts_as_skipped() -> None:
    assert "party" in skipped_areas(judged(HEALTHY))
    assert "party" not in skipped_areas(judged(INCOMPLETE))


def test_what_takes_long_is_done_only_when_asked_for() -> None:
    assert not {"collectives", "links"} & set(chosen(CheckOptions()))
    assert "collectives" in chosen(CheckOptions(collectives=("all",)))
    assert chosen(CheckOptions(areas=("links", "machine"))) == ("machine", "links")


def test_a_plan_is_read_or_refused() -> None:
    assert parse_plan("nodes=4, gpus=8,shm=64M") == {"nodes": "4", "gpus": "8", "shm": "64M"}
    assert amount("64M") == 64 << 20
    assert amount("8GiB") == 8 << 30
    for text in ("node=4", "nodes=", "nodes=-1", "nodes=1e9", "shm=lots", "nodes=4G", "nodes=0"):
        with pytest.raises(WrongUsage, match="--plan"):
            parse_plan(text)
