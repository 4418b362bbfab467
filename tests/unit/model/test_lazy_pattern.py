"""Patterns that are compiled when they are used do what compiled ones do."""

from __future__ import annotations

import re

import pytest

from unhang.model.lazy_pattern import lazy_pattern


def test_it_is_compiled_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, make = [], re.compile

    def noted(pattern: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(pattern)
        return make(pattern, flags)

    monkeypatch.setattr(re, "compile", noted)
    pattern = lazy_pattern(r"rank (\d+)")
    assert compiled == []
    found = pattern.search("of rank 17")
    assert found is not None
    assert found[1] == "17"
    assert pattern.search("nothing") is None
    assert compiled == [r"rank (\d+)"]


def test_flags_bytes_and_attributes_are_those_of_the_pattern() -> None:
    assert lazy_pattern("abc", re.IGNORECASE).fullmatch("ABC")
    assert lazy_pattern(rb"\d+").findall(b"1 22") == [b"1", b"22"]
    assert lazy_pattern("x(?P<name>y)").groupindex == {"name": 1}


def test_an_error_in_the_pattern_shows_when_it_is_used() -> None:
    pattern = lazy_pattern("(")
    with pytest.raises(re.error):
        pattern.search("text")
