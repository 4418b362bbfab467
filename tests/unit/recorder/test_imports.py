from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from unhang.inside.imports import act_after_import
from unhang.inside.recorder.recording import attempt


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "watched_by_us.py").write_text("VALUE = 1\ndef late(): return VALUE\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "watched_by_us"
    sys.modules.pop("watched_by_us", None)


def test_acts_once_after_execution_and_leaves_no_trace(module_name: str) -> None:
    seen: list[ModuleType] = []
    act_after_import({module_name: seen.append})
    assert importlib.util.find_spec(module_name) is not None, "asking is not importing"
    assert seen == []
    module = importlib.import_module(module_name)
    assert seen == [module]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == type(module.__loader__).__name__ == "SourceFileLoader"
    importlib.reload(module)
    assert len(seen) == 1


def test_module_that_is_there_already(module_name: str) -> None:
    module = importlib.import_module(module_name)
    seen: list[ModuleType] = []
    act_after_import({module_name: seen.append})
    assert seen == [module]


def test_failing_action_does_not_reach_the_import(module_name: str) -> None:
    def fail(_: ModuleType) -> None:
        raise RuntimeError("ours")

    act_after_import({module_name: partial(attempt, "hook", fail)})
    assert importlib.import_module(module_name).VALUE == 1


def test_module_that_does_not_exist() -> None:
    before = list(sys.meta_path)
    act_after_import({"no_such_module_anywhere": print})
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_anywhere")
    finally:
        sys.meta_path[:] = before


def test_two_watchers_of_one_module_both_act(module_name: str) -> None:
    """The recorder's, the faults' and the guards' ask each other: none may ask for ever, and each acts once."""
    seen: list[str] = []
    for name in ("recorder", "faults", "guards"):
        act_after_import({module_name: lambda module, name=name: seen.append(name)})  # type: ignore[misc]
    module = importlib.import_module(module_name)
    assert sorted(seen) == ["faults", "guards", "recorder"]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == type(module.__loader__).__name__ == "SourceFileLoader"
