"""Real jobs where something is missing, hostile or in the way: the verdict stays right and the training unharmed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.slowness import slowness
from unhang.diagnosis import judge_paths
from unhang.show import render

from .faults import HANGS, Case
from .harness import _command, _options, _unhang, check_fault, run_job, watchers

BY_NAME = {case.name: case for case in HANGS}
CLEAN = Case("old_torch", "programs/old_torch.py", outcome="clean")


class Evil:
    """Pickles to a call of os.system."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch evil-was-here",)


HOSTILE = {
    "a global": pickle.dumps(Evil()),
    "a memory bomb": b"\x80\x02r\xff\xff\xff\x7fN.",
    "cut": pickle.dumps({"version": "2.10", "entries": [{"record_id": 1}] * 50})[:100],
    "empty": b"",
    "random": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("name", ["lock_deadlock", "conditional_collective"])
def test_without_ptrace_faulthandler_gives_the_stacks(name: str, tmp_path: Path) -> None:
    case = replace(BY_NAME[name], environment={"UNHANG_NO_PTRACE": "1"})
    result = run_job(case, tmp_path)
    check_fault(case, result)
    assert not list((result.report_dir / "bundle").rglob("pyspy.json"))
    assert any("faulthandler" in line for line in result.report["inventory"]["present"])


def test_a_torch_without_the_facilities_runs_on_and_the_inventory_says_so(tmp_path: Path) -> None:
    result = run_job(CLEAN, tmp_path)
    assert (result.exit_code, result.report["outcome"], result.report["findings"]) == (0, "clean", [])
    missing = {entry["what"].split(" of ")[0] for entry in result.report["inventory"]["absent"]}
    assert {"fr.sock", "calls"} <= missing, result.report["inventory"]


def test_the_bundle_gives_the_same_verdict_even_with_hostile_files_in_it(tmp_path: Path) -> None:
    case = BY_NAME["conditional_collective"]
    result = run_job(case, tmp_path)
    check_fault(case, result)
    bundle = result.report_dir / "bundle"
    again = json.loads(render(judge_paths([bundle]), "json"))
    assert again["findings"] == result.report["findings"]
    for i, content in enumerate(HOSTILE.values()):
        folder = bundle / "ranks" / f"r{10 + i}-{999000 + i}"
        shutil.copytree(next((bundle / "ranks").glob("r1-*")), folder)
        identity = json.loads((folder / "identity.json").read_bytes()) | {"rank": 10 + i}
        (folder / "identity.json").write_text(json.dumps(identity))
        (folder / "flight.json").unlink()
        (folder / "flight.pickle").write_bytes(content)
    hostile = json.loads(render(judge_paths([bundle]), "json"))
    first = hostile["findings"][0]
    assert (first["cause"], first["culprit_ranks"], first["location"]) == tuple(
        result.report["findings"][0][key] for key in ("cause", "culprit_ranks", "location")
    )
    reasons = {entry["what"]: entry["reason"] for entry in hostile["inventory"]["absent"]}
    for i, name in enumerate(HOSTILE):
        assert "flight.pickle" in reasons[f"calls of rank {10 + i}"], name
    assert not Path("evil-was-here").exists()


def test_killing_the_watcher_does_not_harm_the_training(tmp_path: Path) -> None:
    case = Case("unwatched", "programs/ddp_with_workers.py", outcome="clean")
    command = [*_unhang(), *_options(case, tmp_path / "report"), "--", *_command(case, None)]
    process = warm.popen(command, tmp_path)
    deadline = time.monotonic() + 10 * slowness()
    while not (found := watchers(process)):
        assert time.monotonic() < deadline, "no watcher was started"
        time.sleep(0.05)
    os.kill(found[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=50 * slowness())
    warm.end(process)
    assert process.returncode == 0, stderr
    assert "the watcher ended unexpectedly (signal 9); another one goes on" in stderr


def test_a_condition_that_held_is_not_named_where_another_way_past_the_line_is_open(tmp_path: Path) -> None:
    case = BY_NAME["skips_for_another_reason"]
    result = run_job(case, tmp_path)
    check_fault(case, result)
    first = result.report["findings"][0]
    assert first["confidence"] < 0.9, result
    assert "not bad" not in first["title"], result
    assert "`if loss > 500`" in first["because"], result
