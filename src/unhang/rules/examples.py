"""The notations for cases, for the `EXAMPLES` of rules: a case is made when somebody looks at it, not when a rule is loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from unhang.model import Case
from unhang.model import example as notation

Later = Callable[[], Case]


def make_case(*given: Any, **parts: Any) -> Later:
    """`unhang.model.example.make_case`, later."""
    return partial(notation.make_case, *given, **parts)


def log_case(*given: Any, **parts: Any) -> Later:
    """`unhang.read.logs.case.log_case`, later."""

    def case() -> Case:
        from unhang.read.logs.case import log_case as made

        return made(*given, **parts)

    return case
