"""What a loader's worker did at the suspicion is kept to the end, where nothing better is seen of it there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from unhang.watch import evidence
from unhang.watch.ranks import WatchedRank

OWN, WORKER = os.getpid(), 77


def thread(pid: int, name: str) -> dict[str, Any]:
    return {"pid": pid, "thread_name": name, "frames": []}


@pytest.mark.parametrize("seen_at_the_end", [None, "later"])
def test_a_worker_that_is_not_seen_again_keeps_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_at_the_end: str | None
) -> None:
    folder = tmp_path / f"r0-{OWN}"
    folder.mkdir()
    rank = WatchedRank(folder, 0.0)
    (folder / "pyspy.json").write_text(json.dumps([thread(OWN, "before"), thread(WORKER, "before")]))
    seen = {OWN: [thread(OWN, "later")]} | ({WORKER: [thread(WORKER, "later")]} if seen_at_the_end else {})
    monkeypatch.setattr(evidence, "take_stacks", lambda pids, *_, **__: {p: seen[p] for p in pids if p in seen})
    monkeypatch.setattr(evidence, "children_of", lambda _: [WORKER])
    evidence.save_stacks([rank], with_workers=True)
    kept = {t["pid"]: t["thread_name"] for t in json.loads((folder / "pyspy.json").read_text())}
    assert kept == {OWN: "later", WORKER: seen_at_the_end or "before"}
    evidence.save_stacks([rank])
    assert [t["pid"] for t in json.loads((folder / "pyspy.json").read_text())] == [OWN], "of another quiet"


@pytest.mark.parametrize(
    ("command", "is_rank", "is_kept"),
    [("main.py", False, True), ("main.py", True, False), ("torchrun", False, False)],
)
def test_the_program_that_starts_the_ranks_is_looked_at_unless_it_is_a_rank_or_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, is_rank: bool, is_kept: bool
) -> None:
    """A driver gives the ranks their work; torchrun only waits for them."""
    monkeypatch.setattr(evidence, "take_stacks", lambda pids, *_, **__: {p: [thread(p, "MainThread")] for p in pids})
    with subprocess.Popen(
        ["sh", "-c", "echo; read _", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()  # it runs, under its own command
        evidence.take_driver(tmp_path, driver.pid, [driver.pid if is_rank else OWN])
    assert (tmp_path / "launcher.json").exists() == is_kept
