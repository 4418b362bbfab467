"""The GitHub action, the GitLab template and the pre-commit hooks: their steps run here as they do there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import warm
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
HANGS = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.barrier()
dist.all_reduce(torch.ones(2))
"""
_INPUT = re.compile(r"\$\{\{ inputs\.([a-z]+) \}\}")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(HANGS)
    return tmp_path


def bash(text: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text], cwd=cwd, env={**os.environ, "PATH": path, **env},
        capture_output=True, text=True, timeout=60 * slowness(), check=False,
    )  # fmt: skip


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def run_step(name: str, repository: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """One step of the action with the environment that a runner gives it."""
    spec = action()
    defaults = {key: value.get("default", "") for key, value in spec["inputs"].items()}
    step = next(step for step in spec["runs"]["steps"] if step["name"] == name)
    assert "${{" not in step["run"]  # nothing that a pull request can write is pasted into a script
    env = {key: _INPUT.sub(lambda m: {**defaults, **inputs}[m[1]], value) for key, value in step["env"].items()}
    files = {key: str(repository / key.lower()) for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    return bash(step["run"], repository, **env, **files, GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(repository))


def torchrun(program: str) -> str:
    """Which imports torch once; the true one is in tests/ranks."""
    return shlex.join(warm.forkrun("--eager", 2, program))


def test_a_hang_is_annotated_at_its_line(repository: Path) -> None:
    done = run_step("Run the job", repository, command=torchrun("src/train.py"))
    assert done.returncode == 124
    annotations = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert len(annotations) == 1
    assert re.match(r"::error title=unhang \([a-z0-9-]+\),file=src/train\.py,line=[67]::", annotations[0])
    assert "rank 0 was in barrier()" in annotations[0]
    outputs = dict(line.split("=", 1) for line in (repository / "github_output").read_text().splitlines())
    assert outputs["exit-code"] == "124"
    assert (repository / outputs["report"] / "report.html").exists()  # what the last step uploads
    assert "rank 0" in (repository / "github_step_summary").read_text()


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false | true\necho never", 1), ("exit 7", 7)])
def test_the_exit_code_is_the_jobs(repository: Path, command: str, code: int) -> None:
    done = run_step("Run the job", repository, command=command)
    assert done.returncode == code
    assert ("::error" in done.stdout) == (code != 0)
    assert "never" not in done.stdout


def test_the_version_to_install_is_one_word(repository: Path) -> None:
    (repository / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > args\n')
    (repository / "python").chmod(0o755)
    step = next(s for s in action()["runs"]["steps"] if s["name"] == "Install unhang")
    bash(f'PATH="$PWD:$PATH"; {step["run"]}', repository, INSTALL="unhang[stacks]; touch pwned").check_returncode()
    assert (repository / "args").read_text().splitlines()[-1] == "unhang[stacks]; touch pwned"
    assert not (repository / "pwned").exists()


def test_the_gitlab_job_leaves_a_code_quality_report(repository: Path) -> None:
    job = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())[".unhang"]
    env = {**job["variables"], "UNHANG_INSTALL": "", "UNHANG_COMMAND": torchrun("src/train.py"), "CI_JOB_ID": "17"}
    done = bash("\n".join(job["before_script"] + job["script"]), repository, **env)
    assert done.returncode == 124
    issues = json.loads((repository / job["artifacts"]["reports"]["codequality"]).read_text())
    assert [issue["location"]["path"] for issue in issues] == ["src/train.py"]
    assert issues[0]["location"]["lines"]["begin"] in (6, 7)
    assert (repository / job["artifacts"]["paths"][0] / "17" / "report.html").exists()


def test_the_hooks_run_on_files(repository: Path) -> None:
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert set(hooks) == {"unhang-lint", "unhang-env"}
    (repository / "good.sh").write_text("echo hello\n")
    (repository / "bad.sh").write_text("export NCCL_IB_TIMEOUT=1000\n")
    lint, env = (hooks[name]["entry"] for name in ("unhang-lint", "unhang-env"))
    assert bash(f"{lint} {shlex.quote('src/train.py')}", repository).returncode == 1
    assert bash(f"{env} good.sh", repository).returncode == 0
    found = bash(f"{env} good.sh bad.sh", repository)
    assert found.returncode == 1
    assert "NCCL_IB_TIMEOUT" in found.stdout
