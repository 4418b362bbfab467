"""The examples in the docstrings are run as they stand there."""

import importlib.util
from pathlib import Path

import pytest

from .jobs import run_ranks

EXAMPLES = [
    ("unhang", "install", 2, ""),
    ("unhang.integrations", "Training", 2, ""),
    ("unhang.integrations", "LightningCallback", 1, "lightning"),
    ("unhang.integrations", "TransformersCallback", 1, "transformers"),
    ("unhang.integrations", "watch_accelerator", 1, "accelerate"),
    ("unhang.integrations", "deepspeed_initialize", 1, "deepspeed"),
    ("unhang.integrations", "ray_train_loop", 1, ""),
]


@pytest.mark.parametrize(("module", "name", "ranks", "needs"), EXAMPLES, ids=lambda value: str(value))
def test_the_example_runs(module: str, name: str, ranks: int, needs: str, tmp_path: Path) -> None:
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    ended = run_ranks(ranks, "examples.py", module, name, cwd=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("THE END") == ranks, ended.output
