"""Rules are found by their folder; what cannot be loaded costs nobody else the verdict."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import unhang.rules
from unhang.model import Reading
from unhang.model.example import make_case
from unhang.preflight.checking import judged
from unhang.rules.base import Rule
from unhang.rules.reading_rule import ReadingRule
from unhang.rules.registry import all_rules, judge
from unhang.rules.registry_modules import has_no_other_rules, load_rules

RULE = """
from unhang.rules.base import Rule

class Own(Rule):
    id = "own-{name}"
    cause = "unknown"

    def check(self, s):
        return ()
"""
NOT_WHOLE = """
from unhang.rules.base import Rule

class NotWhole(Rule):
    id = "not-whole"
    cause = "unknown"
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
        ("not_whole", NOT_WHOLE, "TypeError: Can't instantiate abstract class NotWhole"),
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
    assert not asked & {"own-half", "own-other", "not-whole"}


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


def modules() -> Iterator[pkgutil.ModuleInfo]:
    """All modules in folders of rules."""
    for folder in pkgutil.iter_modules(unhang.rules.__path__):
        if folder.ispkg:
            path = [f"{root}/{folder.name}" for root in unhang.rules.__path__]
            yield from pkgutil.iter_modules(path, f"unhang.rules.{folder.name}.")


def test_what_is_left_out_without_readings_are_rules_that_would_not_apply() -> None:
    kinds: dict[str, list[type[Rule]]] = {}
    for rule in all_rules():
        kinds.setdefault(type(rule).__module__, []).append(type(rule))
    left_out = [module.name for module in modules() if has_no_other_rules(module)]
    assert len(left_out) > 40
    for name in left_out:
        assert [k for k in kinds.get(name, ()) if k.applies is not ReadingRule.applies] == []
    case = make_case()
    others = {rule.id for rule in all_rules() if type(rule).__module__ not in left_out and rule.applies(case)}
    assert others == {rule.id for rule in all_rules() if rule.applies(case)}


@pytest.mark.parametrize(
    ("source", "alone"),
    [
        ("class A(ReadingRule):\n    pass", True),
        ("class A(ReadingRule):\n    pass\nclass B(LineRule):\n    pass", False),
        ("class A(ReadingRule):\n    pass\nclass B(A):\n    pass", False),
        ("class A(ReadingRule, Other):\n    pass", False),
        ("class A(\n    ReadingRule\n):\n    pass\nif True:\n    class B(Rule):\n        pass", False),
        ("class A(ReadingRule):\n    def applies(self, case):\n        return True", False),
        ("class A:\n    pass", True),
        ("class A(Shared):\n    pass", False),
    ],
)
def test_a_module_is_left_out_only_if_all_in_it_are_rules_on_readings(folder: Path, source: str, alone: bool) -> None:
    (folder / "some.py").write_text(source)
    (module,) = (m for m in pkgutil.iter_modules([str(folder)], "unhang.rules.beside.") if m.name.endswith(".some"))
    assert has_no_other_rules(module) is alone
