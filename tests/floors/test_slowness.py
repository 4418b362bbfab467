"""The limits of the tests grow with the slowness of the machine, and never shrink."""

from __future__ import annotations

import os

import pytest

from tests import slowness
from tests.conftest import give_time


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known yet."""
    monkeypatch.delenv(slowness.VARIABLE, raising=False)
    monkeypatch.setattr(slowness, "_measured", (float("-inf"), 1.0))


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("quiet_s", "expected"), [(1000.0, 1.0), (1e-9, slowness.MOST)])
def test_it_is_measured_once_in_a_while(quiet_s: float, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowness, "_QUIET_S", quiet_s)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert slowness.slowness() == expected
    monkeypatch.setattr(slowness, "_COUNT", None)  # would raise if it counted again
    assert slowness.slowness() == expected


@pytest.mark.usefixtures("measured")
def test_many_that_wait_for_a_core_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowness, "_QUIET_S", 1000.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert slowness.slowness() == 3.0


@pytest.mark.timeout(70)
def test_the_variable_goes_first_and_the_time_limit_of_a_test_grows(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(slowness.VARIABLE, "2.5")
    before = request.node.get_closest_marker("timeout").args[0]
    assert before >= 70
    give_time(request.node)
    assert request.node.get_closest_marker("timeout").args[0] == 2.5 * before
