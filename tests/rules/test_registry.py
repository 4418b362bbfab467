"""Rules are found by their folder; what cannot be loaded costs nobody else the verdict."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import unhang.rules
from tests.slowness import slowness
from unhang.check.checking import judged
from unhang.model import Reading
from unhang.rules.base import Found, Names, Rule
from unhang.rules.registry import all_rules, judge, load_rules
from unhang.testing import make_case

RULE = """
from unhang.rules.base import rule

@rule("own-{name}")
def find(s):
    return None
"""
TWICE = """
from unhang.rules.base import rule

@rule("rank-crashed")
def find(s):
    return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of rules beside the others."""
    load_rules(True)  # the others stay imported
    made = tmp_path / "beside"
    made.mkdir()
    (made / "__init__.py").write_text("")
    (made / "good.py").write_text(RULE.format(name="good"))
    monkeypatch.setattr(unhang.rules, "__path__", [*unhang.rules.__path__, str(tmp_path)])
    load_rules.cache_clear()
    yield made
    for name in [name for name in sys.modules if name.startswith("unhang.rules.beside")]:
        del sys.modules[name]
    if hasattr(unhang.rules, "beside"):
        del unhang.rules.beside
    load_rules.cache_clear()


def test_a_rule_is_one_new_file(folder: Path) -> None:
    assert "own-good" in {rule.id for rule in all_rules()}


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "no_module",
            "import not_installed_at_all" + RULE.format(name="other"),
            "No module named 'not_installed_at_all'",
        ),
        ("no_python", "class :" + RULE.format(name="other"), "SyntaxError"),
        ("half", RULE.format(name="half") + "raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("leaves", "raise SystemExit(3)" + RULE.format(name="other"), "SystemExit: 3"),
        ("twice", TWICE, "ValueError: there are two rules 'rank-crashed'"),
    ],
)
def test_a_broken_file_is_named_and_the_others_judge(folder: Path, name: str, source: str, said: str) -> None:
    (folder / f"{name}.py").write_text(source)
    diagnosis = judge(make_case())
    (note,) = (note for note in diagnosis.notes if "cannot be loaded" in note)
    assert f"unhang.rules.beside.{name}" in note
    assert said in note
    assert "\n" not in note
    asked = {outcome.rule for outcome in diagnosis.outcomes}
    assert {"own-good", "rank-crashed"} <= asked
    assert not asked & {"own-half", "own-other"}


def test_a_check_names_a_broken_file_too(folder: Path) -> None:
    case = replace(make_case(), readings=(Reading("setup.anything", "", {}),))
    assert not any("cannot be loaded" in note for note in judged(case).notes)
    (folder / "half.py").write_text("raise ValueError('no rule')")
    load_rules.cache_clear()
    (note,) = (note for note in judged(case).notes if "cannot be loaded" in note)
    assert "unhang.rules.beside.half" in note


def test_a_broken_folder_is_named(folder: Path) -> None:
    (folder / "__init__.py").write_text("import not_installed_at_all")
    (note,) = load_rules().broken
    assert "unhang.rules.beside " in note


def test_what_names_the_cause_comes_before_what_is_surer_of_less() -> None:
    def of(name: str, confidence: float, names: Names) -> Rule:
        return replace(all_rules()[0], id=name, find=lambda _s: Found(confidence), names=names, needs=(), reads=())

    rules = [
        of("never-issued", 0.99, Names.FAILURE),
        of("port-in-use", 0.6, Names.CAUSE),
        of("shm-too-small", 0.7, Names.CAUSE),
        of("timeout-unexplained", 1.0, Names.NOTHING),
    ]
    findings = judge(make_case({}, hang=None), rules).findings
    assert [f.rule for f in findings] == ["shm-too-small", "port-in-use", "never-issued"]
    assert [f.consequence_of for f in findings] == [None, "F1", "F1"]
    assert [f.rule for f in judge(make_case({}, hang=None), rules[3:]).findings] == ["timeout-unexplained"]


def test_what_is_left_out_without_readings_are_rules_that_would_not_apply() -> None:
    code = "from unhang.rules.registry import load_rules; print(*(rule.id for rule in load_rules(False).rules))"
    fresh = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60 * slowness()
    )
    loaded, case = set(fresh.stdout.split()), make_case()
    assert {rule.id for rule in all_rules() if rule.applies(case)} <= loaded
    assert len({rule.id for rule in all_rules()} - loaded) > 40


def test_judging_a_case_reads_no_tables_of_variables() -> None:
    code = "import sys; from unhang.rules.registry import load_rules; load_rules(False); print(*sys.modules)"
    fresh = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60 * slowness()
    )
    assert "unhang.rules.job.network" in fresh.stdout.split()
    assert not {"unhang.rules.env", "unhang.read.environment"} & set(fresh.stdout.split())


@pytest.mark.parametrize(("exit_code", "told"), [(1, "user-exception"), (0, None)])
def test_an_attempt_that_failed_is_told_where_the_last_one_went_well_and_the_job_failed_all_the_same(
    exit_code: int, told: str | None
) -> None:
    failed = make_case(world=2, hang=None, exit_code=1, errors={1: "ValueError: no such trial@main:9"})
    well = make_case({r: ["all_reduce[4]@main:3"] for r in (0, 1)}, world=2, hang=None, exit_code=exit_code)
    found = judge(replace(well, attempt=1, earlier=(failed,))).findings
    assert [f.cause for f in found] == ([told] if told else [])
    assert [f.attempt for f in found] == ([0] if told else [])


_GATED = """\
def main():
    if len(rows) > most:
        dist.all_reduce(x)
    dist.all_gather(parts, x)
"""


@pytest.mark.parametrize(("held", "is_told"), [("1", True), ("9", False)])
def test_the_values_by_which_a_condition_came_out_differently(held: str, is_told: bool) -> None:
    makes, past = "all_reduce[8]@main:3", "all_gather[2]@main:4"
    made = {r: [makes, past, f"{past if r == 2 else makes} !"] for r in range(3)}
    case = make_case(
        made, world=3, source=_GATED, hang="proven", stacks={r: f"main:{4 if r == 2 else 3}>~comm" for r in made}
    )
    at = {r: e.main_frames[-1] for r, e in case.ranks.items()}
    ranks = {
        r: replace(e, variables=((at[r], "len(rows)", held if r == 2 else "9"), (at[r], "most", "4")))
        for r, e in case.ranks.items()
    }
    found = judge(replace(case, ranks=ranks)).findings[0]
    assert found.culprit_ranks == (2,)
    told = [e.text for e in found.evidence if e.source == "variables that differ"]
    assert ("`len(rows)` was 1 on rank 2, 9 on all others." in found.because) is is_told
    assert bool(told) is is_told
