"""Where each rule must speak and where it must be silent: `CASES` of every file of this folder, rule id -> cases."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from unhang.testing import Fires, Quiet


@cache
def load_examples() -> dict[str, tuple[Fires | Quiet, ...]]:
    """The cases of every rule. Raises: ValueError if two files hold cases of one rule."""
    found: dict[str, tuple[Fires | Quiet, ...]] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for rule, cases in import_module(module.name).CASES.items():
            if rule in found:
                raise ValueError(f"{module.name}: there are cases of {rule} elsewhere")
            found[rule] = tuple(cases)
    return found
