"""Runs an action right after a module has been executed, before anyone can bind its names early."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .recording import attempt

Action = Callable[[Any], None]


class _ActingLoader(Loader):
    """Executes the module with its own loader and acts afterwards. The module keeps no trace of this object."""

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
    """A finder that finds what the others find, for the watched modules only."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self.actions = dict(actions)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.actions:
            return None
        spec = self._ask_others(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _ActingLoader(spec.loader, self._act)
        return spec

    def _act(self, module: ModuleType) -> None:
        """Once, and only after execution: importlib.util.find_spec() asks for modules that nobody imports."""
        action = self.actions.pop(module.__name__, None)
        if action is not None:
            attempt(f"hook {module.__name__}", action, module)

    def _ask_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None


def act_after_import(actions: Mapping[str, Action]) -> None:
    """Call each action with its module: now if it is imported already, else as soon as it has been executed."""
    later = {}
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            attempt(f"hook {name}", action, module)
        else:
            later[name] = action
    if later:
        sys.meta_path.insert(0, _Watcher(later))
