"""The page of the rules is written from their cards."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from unhang.lint.cards import all_cards
from unhang.model import CAUSES

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_lint", ROOT / "docs" / "make_lint.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run make docs"


def test_a_card_names_a_cause_that_there_is() -> None:
    assert {card.cause for card in all_cards().values()} <= set(CAUSES)
    assert len({card.name for card in all_cards().values()}) == len(all_cards()) >= 30
