"""Every command and every program on the pages on pytest, CI and MCP runs, in the order of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests import warm
from tests.ci.test_action import ROOT, action, bash

PAGES = ("docs/pytest.md", "docs/ci.md", "docs/commands/mcp.md")
TRAIN = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in _BLOCK.findall((ROOT / page).read_text()) if kind == language]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.whole if p == "docs/pytest.md" else ()) for p in PAGES]
)
def test_the_commands_run(page: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.sh").write_text("export NCCL_DEBUG=INFO\n")
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    for program in blocks(page, "python"):
        name = program.splitlines()[0].removeprefix("# ")
        assert name.startswith("test_")
        (tmp_path / name).write_text(program)
    torchrun = tmp_path / "bin" / "torchrun"  # imports torch once
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(warm.forkrun("--eager"))} "$@"\n')
    torchrun.chmod(0o755)
    commands = [line[2:] for text in blocks(page, "") for line in text.splitlines() if line.startswith("$ ")]
    assert commands
    for command in commands:
        done = bash(f'PATH="$PWD/bin:$PATH"; {command}', tmp_path, OMP_NUM_THREADS="1")
        assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-2000:])


def test_the_yaml_names_what_is_there() -> None:
    workflow, gitlab, hooks = (yaml.safe_load(text) for text in blocks("docs/ci.md", "yaml"))
    step = workflow["jobs"]["two-ranks"]["steps"][-1]
    assert set(step["with"]) <= set(action()["inputs"])
    template = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())
    assert gitlab["train"]["extends"] in template
    assert set(gitlab["train"]["variables"]) <= set(template[".unhang"]["variables"])
    assert (ROOT / gitlab["include"][0]["remote"].partition("/v0.1.0/")[2]).exists()
    known = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert {hook["id"] for hook in hooks["repos"][0]["hooks"]} == known


def test_the_settings_of_an_agent_are_json() -> None:
    (text,) = blocks("docs/commands/mcp.md", "json")
    assert json.loads(text)["mcpServers"]["unhang"]["args"][0] == "mcp"
