"""The table of truths is consistent with itself and with the programs."""

from unhang.model import CAUSES

from .faults import CRASHES, HANGS, HEALTHY, HERE, STORIES, STRAGGLERS
from .live import LIVE

FAULTY = [*HANGS, *STRAGGLERS, *CRASHES, *STORIES]


def test_a_fault_has_a_cause_a_culprit_and_a_line() -> None:
    assert [c.name for c in FAULTY if c.cause not in CAUSES] == []
    assert [c.name for c in FAULTY if not c.culprits] == []
    assert [c.name for c in FAULTY if not c.truth()] == []


def test_names_are_unique() -> None:
    names = [case.name for case in FAULTY + HEALTHY]
    assert len(set(names)) == len(names)


def test_every_program_is_used() -> None:
    used = {case.path for case in FAULTY + HEALTHY}
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    programs = {p for p in (HERE / "programs").glob("*.py") if p.name != "toy.py" and p.name not in tests}
    assert {p for p in programs if f'healthy("{p.stem}"' not in tests} <= used


def test_the_live_ones_are_in_the_table() -> None:
    assert set(LIVE) <= {case.name for case in FAULTY + HEALTHY}
