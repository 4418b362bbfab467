"""Acts right after a module of torch has been executed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[Any], None]


class _ActingLoader(Loader):
    def __init__(self, own: Any, act: Action) -> None:
        self._own = own
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        self._own.exec_module(module)
        self._act(module)


class _Watcher:
    """Finds what the other finders find, for the watched modules only."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions
        self._asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._actions or name in self._asked:
            return None
        self._asked.add(name)  # another watcher that asks everybody asks us again
        try:
            return self._ask_others(name, path, target)
        finally:
            self._asked.discard(name)

    def _ask_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _ActingLoader(spec.loader, self._act)
                return spec
        return None

    def _act(self, module: ModuleType) -> None:
        action = self._actions.pop(module.__name__, None)
        if action is not None:
            action(module)


def act_after_import(actions: dict[str, Action]) -> None:
    """Calls each action with its module, once that has been executed."""
    sys.meta_path.insert(0, _Watcher(dict(actions)))
