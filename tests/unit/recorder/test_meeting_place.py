"""Where a rank looks for the others as it starts: noted with its init_process_group."""

from __future__ import annotations

from typing import Any

import pytest

from unhang.inside.recorder.announce import meets_at


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((), {}, "n0:4001"),
        (("gloo",), {"rank": 1}, "n0:4001"),
        (("gloo", "env://?x=1"), {}, "n0:4001"),
        (("gloo", "tcp://n1:5000?rank=1"), {}, "n1:5000"),
        ((), {"init_method": "file:///shared/start"}, "/shared/start"),
        ((), {"store": object()}, ""),
    ],
)
def test_it_is_that_of_the_arguments_else_of_the_variables(
    args: tuple[Any, ...], kwargs: dict[str, Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "n0")
    monkeypatch.setenv("MASTER_PORT", "4001")
    assert meets_at(args, kwargs) == found


def test_without_variables_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert meets_at((), {}) == ""
