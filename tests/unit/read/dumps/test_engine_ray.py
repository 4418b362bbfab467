"""Without Ray, one line says how to get it."""

from __future__ import annotations

import sys

import pytest

from unhang.errors import UnhangError
from unhang.read.dumps.engine_ray import RayEngine


def test_a_missing_ray_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnhangError, match=r"pip install 'unhang\[ray\]'") as raised:
        RayEngine()
    assert "\n" not in str(raised.value)
