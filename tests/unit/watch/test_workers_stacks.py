"""What a loader's worker did at the suspicion is kept to the end, where nothing better is seen of it there."""

from __future__ import annotations

import json
import os
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
