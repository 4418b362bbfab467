"""The commands on the pages of the stories do what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slowness import slowness
from unhang.rules.decision_tree import rules_by_id

from .cases import FOLDER, STORIES

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\(([\w./-]+\.md)\)")
CODES = {"run": 124, "diagnose": 1, "reproduce": 0, "verify": 0, "explain": 0}


def page(name: str) -> str:
    return (FOLDER / name / "README.md").read_text()


def commands(name: str) -> list[list[str]]:
    block = page(name).partition("## Try it")[2].partition("```\n")[2].partition("```")[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.mark.parametrize("name", STORIES)
def test_a_page_has_the_commands_of_its_story(name: str) -> None:
    assert [words[1] for words in commands(name)] == [
        "demo",
        "run",
        "diagnose",
        "reproduce",
        "reproduce",
        "verify",
        "explain",
    ]
    assert commands(name)[0] == ["unhang", "demo", name]
    links = _LINK.findall(page(name))
    assert [link for link in links if not (FOLDER / name / link).exists()] == []
    assert any(Path(link).stem in rules_by_id() for link in links)
    text = FOLDER / name / commands(name)[-1][2]
    assert text.resolve() == ROOT / "tests" / "stories" / "texts" / f"{name}.md"


@pytest.mark.whole
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STORIES)
def test_they_do_what_the_page_says(name: str, tmp_path: Path) -> None:
    here = tmp_path / "examples" / "stories" / name
    here.parent.mkdir(parents=True)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    here.mkdir()
    (here / "train.py").write_bytes((FOLDER / name / "train.py").read_bytes())
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for words in commands(name)[1:]:
        done = subprocess.run(
            words, cwd=here, env=environment, capture_output=True, text=True, timeout=200 * slowness()
        )
        told = done.stdout + done.stderr
        assert done.returncode == CODES[words[1]], (words, told[-3000:])
        if words[1] == "diagnose":
            verdict = next(line for line in page(name).splitlines() if line.startswith("HANG  "))
            assert verdict.rpartition("[")[2].partition(",")[0] in told, told
