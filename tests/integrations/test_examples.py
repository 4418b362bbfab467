"""The examples in the docstrings are run as they stand there."""

import importlib.util
from pathlib import Path

import pytest

from .jobs import run_ranks

EXAMPLES = [
    ("unhang.guard.installing", "install", 2, ""),
    ("unhang.integrations.training", "Training", 2, ""),
    ("unhang.integrations.lightning", "UnhangCallback", 1, "lightning"),
    ("unhang.integrations.transformers", "UnhangCallback", 1, "transformers"),
    ("unhang.integrations.accelerate", "watch", 1, "accelerate"),
    ("unhang.integrations.deepspeed", "initialize", 1, "deepspeed"),
    ("unhang.integrations.ray_train", "guarded", 1, ""),
]


@pytest.mark.parametrize(("module", "name", "ranks", "needs"), EXAMPLES, ids=lambda value: str(value))
def test_the_example_runs(module: str, name: str, ranks: int, needs: str, tmp_path: Path) -> None:
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    ended = run_ranks(ranks, "examples.py", module, name, cwd=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("THE END") == ranks, ended.output
