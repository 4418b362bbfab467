"""The import hook of the recorder, the guards and the injected faults: acts right after a module has been executed.

Before anyone can bind its names early. Loaded as `unhang.inside.imports`, and as `_unhang_inside.imports` where unhang itself
cannot be imported; what several such watchers want of one module all happens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
        self._actions = dict(actions)
        self._asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._actions or name in self._asked:
            return None
        self._asked.add(name)  # another watcher that asks everybody asks us again
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._asked.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _ActingLoader(spec.loader, self._act)
        return spec

    def _act(self, module: ModuleType) -> None:
        """Once, and only after execution: importlib.util.find_spec() asks for modules that nobody imports."""
        action = self._actions.pop(module.__name__, None)
        if action is not None:
            action(module)

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
    """Call each action with its module: now if it is imported already, else as soon as it has been executed.

    What an action raises reaches who imports the module.
    """
    later = {}
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            action(module)
        else:
            later[name] = action
    if later:
        sys.meta_path.insert(0, _Watcher(later))
