"""The modules that hold rules, imported as far as a case needs them. One that cannot be imported costs its own rules alone."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import unhang.rules
from unhang.rules.base import Rule

_BASES = re.compile(rb"class\s+\w+\s*\(([^)]*)\)")


class Loaded(NamedTuple):
    """One instance of every rule, ordered by id, and one line for each module or rule that fails."""

    rules: tuple[Rule, ...]
    broken: tuple[str, ...]


@cache
def load_rules(with_readings: bool = True, /) -> Loaded:
    """The rules; without those that judge readings alone, which are most and have no verdict where nothing was read."""
    broken: list[str] = []
    for folder in pkgutil.iter_modules(unhang.rules.__path__, f"{unhang.rules.__name__}."):
        if folder.ispkg and _is_imported(folder.name, broken):
            for module in pkgutil.iter_modules(sys.modules[folder.name].__path__, f"{folder.name}."):
                if with_readings or not has_no_other_rules(module):
                    _is_imported(module.name, broken)
    rules: list[Rule] = []
    for kind in _kinds(Rule):
        if kind.__module__ in sys.modules:  # else its import has failed
            _attempt(f"the rule {kind.__module__}.{kind.__name__}", partial(_add, kind, rules), broken)
    return Loaded(tuple(sorted(rules, key=lambda rule: rule.id)), tuple(broken))


def _add(kind: Callable[[], Rule], rules: list[Rule]) -> None:
    rules.append(kind())


def _is_imported(name: str, broken: list[str]) -> bool:
    return _attempt(f"the module of rules {name}", partial(importlib.import_module, name), broken)


def _attempt(what: str, load: Callable[[], object], broken: list[str]) -> bool:
    try:
        load()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a file put beside the others may do anything
        broken.append(
            f"{what} cannot be loaded and was not asked ({type(error).__name__}: {' '.join(str(error).split())})"
        )
        return False
    return True


def has_no_other_rules(module: pkgutil.ModuleInfo) -> bool:
    """Whether its source shows no rules but plain `ReadingRule`s. To read it is cheaper than to import it."""
    try:
        with open(f"{module.module_finder.path}/{module.name.rpartition('.')[2]}.py", "rb") as f:  # type: ignore[union-attr]
            source = f.read()
    except (OSError, AttributeError):  # a package, or no file
        return False
    return {*_BASES.findall(source)} <= {b"ReadingRule"} and b"def applies" not in source


def _kinds(base: type[Any]) -> Iterator[type[Rule]]:
    """All kinds of rules that have an id of their own; the others are what these are made from."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("unhang.rules.") and hasattr(kind, "id"):
            yield kind
        yield from _kinds(kind)
