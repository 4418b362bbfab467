"""The types of the public names serve a user's strict type checker."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import unhang

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".mypy_cache" / "user"


def test_the_script_uses_every_public_name() -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse((HERE / "typed_user.py").read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "unhang"
    }
    assert used == set(unhang.__all__)


@pytest.mark.timeout(180)
def test_a_users_script_passes_a_strict_check(tmp_path: Path) -> None:
    """An `ignore` that is not needed is an error as well: each marks a mistake that the types must show."""
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config), "--follow-imports", "silent",
         "--ignore-missing-imports", "--cache-dir", str(CACHE), str(HERE / "typed_user.py")],
        capture_output=True, text=True, timeout=170, check=False, cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(HERE.parents[1] / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_function_has_an_example() -> None:
    """The examples run: here, in tests/ranks and in tests/integrations."""
    plain = {"LoaderFinding"} | {
        n for n in unhang.__all__ if n.startswith("__") or hasattr(getattr(unhang, n), "help_text")
    }
    without = [n for n in unhang.__all__ if n not in plain and "Example:" not in (getattr(unhang, n).__doc__ or "")]
    assert not without
