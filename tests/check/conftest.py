"""For the tests of checks: workers that need not import torch."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests import warm
from unhang.check import children


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The workers of checks are forks. Those of `unhang check --ranks` start as they do for users."""
    started: list[warm.WarmModule] = []

    def popen(*arguments: Any, **options: Any) -> warm.WarmModule:
        options["env"].pop("UNHANG_MAKER_PID")  # the server started it, which ends it with us
        started.append(warm.WarmModule(*arguments, **options))
        return started[-1]

    warm.get_ready()
    monkeypatch.setattr(children, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))
    yield
    for worker in started:
        worker.end()
