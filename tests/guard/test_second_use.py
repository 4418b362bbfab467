"""`process_group` several times in one process, in one store; and what its watcher answers for sections that nobody has used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from tests.ranks.guarded import run

from unhang.inside.guards import job

THREE_TIMES = """
import torch, torch.distributed as dist, unhang

for use in range(3):
    with unhang.process_group("gloo", timeout=20) as job:
        total = torch.ones(1)
        dist.all_reduce(total)
        agreement = unhang.together(job.rank == use % 2)
        group = dist.new_group([0, 1])
        dist.all_reduce(total, group=group)
        del group
        print(f"use {use}", total.item(), agreement.ranks, flush=True)
"""
# Rank 1 never uses a section, and holds none of its threads; it is asked all the same.
ASKED = """
import os, time, threading, unhang

with unhang.process_group("gloo", timeout=20) as job:
    if job.rank == 0:
        with unhang.section("validation", limit_s=0.2):
            time.sleep(3)
    else:
        time.sleep(3)
        assert not [t.name for t in threading.enumerate() if "section" in t.name]
"""


@pytest.mark.parametrize("launcher", ["patient", "hosted"])
def test_three_uses_in_one_store(launcher: str, tmp_path: Path) -> None:
    """torch alone fails in most runs of this kind: with old addresses in the store, ranks connect to nobody."""
    ended = run(THREE_TIMES, tmp_path, launcher=launcher)
    assert ended.exit_code == 0, ended
    for use in range(3):
        assert ended.out.count(f"use {use} 4.0 ({use % 2},)") == 2, ended
    assert "failed" not in ended.err, ended


def test_a_rank_without_sections_is_asked(tmp_path: Path) -> None:
    ended = run(ASKED, tmp_path)
    assert ended.exit_code == 0, ended
    assert "rank 0: 'validation' is over its limit of 0.2 s" in ended.err, ended
    assert "entered it never, not once, at train.py:9 in <module>: rank 1" in ended.err, ended


def test_uses_are_counted_by_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_uses", type(job._uses)())
    monkeypatch.setenv("MASTER_ADDR", "a")
    monkeypatch.setenv("MASTER_PORT", "1")
    store = dist.HashStore()
    assert [job.begun({}), job.begun({"init_method": "env://"}), job.begun({"timeout": 1})] == [1, 2, 3]
    assert [job.begun({"init_method": "file:///x"}), job.begun({"init_method": "tcp://a:1"})] == [1, 1]
    assert [job.begun({"store": store}), job.begun({"store": dist.PrefixStore("p", store)})] == [1, 2]
    monkeypatch.setenv("MASTER_PORT", "2")
    assert job.begun({}) == 1


def test_the_first_use_is_torchs_own_and_a_later_one_has_other_keys() -> None:
    store = dist.HashStore()
    given = {"store": store, "rank": 0, "world_size": 1}
    assert job.with_keys_of_its_own(given, 1, 5.0) is given
    later = job.with_keys_of_its_own(given, 2, 5.0)
    later["store"].set("key", "2")
    assert store.check(["use_2/key"])
    assert not store.check(["key"])
    assert given["store"] is store
