"""flake8 shows the findings of a file."""

from __future__ import annotations

import ast
from importlib.metadata import EntryPoint
from pathlib import Path
from tomllib import loads

PROGRAM = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"


def found_in(program: str, folder: Path) -> list[tuple[int, int, str]]:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    value = loads(text)["project"]["entry-points"]["flake8.extension"]["LNT"]
    plugin = EntryPoint("LNT", value, "flake8.extension").load()
    made = plugin(ast.parse(program), str(folder / "train.py"), program.splitlines(keepends=True))
    return [(line, column, said[:7]) for line, column, said, _ in made.run()]


def test_a_finding(tmp_path: Path) -> None:
    assert found_in(PROGRAM, tmp_path) == [(3, 4, "LNT101 ")]


def test_a_healthy_program(tmp_path: Path) -> None:
    assert found_in(PROGRAM.replace("if dist.get_rank() == 0:", "if True:"), tmp_path) == []


def test_the_settings_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.unhang.lint]\nignore = ["LNT101"]\n')
    assert found_in(PROGRAM, tmp_path) == []
