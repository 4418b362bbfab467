"""`unhang.integrations` is the one address of what is for frameworks; it brings none that is not asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import unhang.integrations

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
FRAMEWORKS = {"torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "deepspeed", "ray"}


def _loaded_by(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    return {name.partition(".")[0] for name in done.stdout.split()} & FRAMEWORKS


def test_the_import_brings_no_framework() -> None:
    assert _loaded_by("import unhang.integrations") == set()
    names = ("Training", "watch_accelerator", "deepspeed_initialize", "ray_train_loop", "ray_training")
    assert _loaded_by(f"from unhang.integrations import {', '.join(names)}") == set()


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match=r"'unhang\.integrations' has no attribute 'Trainer'"):
        unhang.integrations.Trainer  # noqa: B018


def test_the_page_shows_how_to_import_each_name_and_each_example_compiles() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        compile(block, str(PAGE), "exec")
    imported = {
        name.strip()
        for block in blocks
        for line in re.findall(r"from unhang\.integrations import (.*)", block)
        for name in line.split(",")
    }
    assert imported == set(unhang.integrations.__all__) == set(dir(unhang.integrations))
