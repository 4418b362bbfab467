"""`import unhang` in a training script costs nothing: whatever is large comes when it is used."""

from __future__ import annotations

import subprocess
import sys

import unhang


def _modules_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_import_brings_nothing_large() -> None:
    assert not _modules_after("import unhang") & {"torch", "click", "numpy", "rich", "msgspec"}


def test_the_names_do_not_bring_torch_either() -> None:
    names = [name for name in unhang.__all__ if not name.startswith("__")]
    loaded = _modules_after(f"import unhang\nfor name in {names}: getattr(unhang, name)")
    assert not loaded & {"torch", "click", "rich", "msgspec"}
