"""`unhang verify` on the stories: the broken program and its fix pass, the broken program twice does not."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.slowness import slowness
from unhang.verify.stories import Story, find_stories

LIMITS = ["--stall-after", "4", "--abort-after", "2", "--run-limit", "150"]
STORIES, _ = find_stories()
QUICK = (pytest.param("reid", marks=pytest.mark.whole), "async_rl")


def job(story: Story, *options: str) -> list[str]:
    return warm.forkrun("--eager", 4, story.folder / story.file, *options)


def verify(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = warm.run([*warm.UNHANG, "verify", *LIMITS, "--format", "json", *arguments], Path.cwd(), 350 * slowness())
    return done.returncode, json.loads(done.stdout)


def named_before(told: dict[str, Any]) -> tuple[str, list[int]]:
    run = told["before"]["runs"][0]
    return run["cause"], run["culprit_ranks"]


@pytest.mark.parametrize("name", QUICK)
def test_the_fix_passes_and_no_fix_does_not(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    before = ["--before-command", shlex.join(job(story, "--broken")), "--report-dir", str(tmp_path)]
    code, told = verify(*before, "--after", "--", *job(story))
    assert code == 0, told
    assert named_before(told) == (story.cause, list(story.culprits))
    assert told["headline"] == f"VERIFIED: {story.cause} before, nothing after"
    bundle = str(tmp_path / "before-1" / "bundle")
    code, told = verify("--before", bundle, "--after", bundle)
    assert code == 1, told
    failed = {check["name"]: check["reason"] for check in told["checks"] if check["verdict"] == "fail"}
    assert failed.keys() >= {"cause_is_gone", "no_finding", "exit_code"}
    assert f"{story.cause} is still there" in failed["cause_is_gone"]


@pytest.mark.whole
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [name for name in STORIES if name != "demo"])
def test_the_fix_passes_and_the_same_program_again_does_not(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    code, told = verify("--report-dir", str(tmp_path / "before"), "--", *job(story, "--broken"))
    assert code == 1, told
    bundle = ["--before", str(tmp_path / "before" / "after-1" / "bundle")]
    code, told = verify(*bundle, "--report-dir", str(tmp_path / "fixed"), "--after", "--", *job(story))
    assert code == 0, told
    assert named_before(told) == (story.cause, list(story.culprits))
    code, told = verify(*bundle, "--report-dir", str(tmp_path / "again"), "--after", "--", *job(story, "--broken"))
    assert code == 1, told
    assert "cause_is_gone" in {check["name"] for check in told["checks"] if check["verdict"] == "fail"}
