"""The notation for cases, for the tables of cases: one is made when a test looks at it, not when its table is loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from unhang import testing
from unhang.model import Case

Later = Callable[[], Case]


def make_case(*given: Any, **parts: Any) -> Later:
    """`unhang.testing.make_case`, later."""
    return partial(testing.make_case, *given, **parts)


def log_case(*given: Any, **parts: Any) -> Later:
    """`unhang.testing.log_case`, later."""
    return partial(testing.log_case, *given, **parts)
