"""Verified collectives with real workers over gloo: a healthy job, and one rank that corrupts, sleeps, or never comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.check.collectives_ranks import on_torch, put_fault, run_members
from tests.slowness import slowness
from unhang.check.collectives import Progress
from unhang.check.collectives.merge import (
    against,
    blame,
    load_reference,
    merge,
    reference_of,
    save_reference,
    slow_ranks,
)
from unhang.check.collectives.suite import FAMILIES, CaseResult, Limits, State, as_fields

pytestmark = pytest.mark.usefixtures("warm_workers")

MEMBER = """
import sys
from unhang.check.collectives.suite import Limits
from unhang.check.collectives import Rendezvous, run_collectives
run_collectives(Rendezvous(0, 2, "127.0.0.1:9", "test"), ["barrier"], limits=Limits(start_s=50))
"""


def test_a_healthy_job_is_right_everywhere(tmp_path: Path) -> None:
    told: list[Progress] = []
    by_rank = run_members(4, ["all"], tell=told.append)
    tables = merge(by_rank, 4)
    assert {table.op for table in tables} == set(FAMILIES)
    assert {table.group for table in tables} == {"all", "halves", "pairs", "other pairs"}
    skipped = {table.name: table.reasons[0] for table in tables if table.verdict is State.SKIPPED}
    assert "Cannot use ReduceOp.PREMUL_SUM with Gloo" in skipped.pop("all_reduce premul_sum 1003 float32")
    assert all(reason and ("complex" in name or "uneven" in name) for name, reason in skipped.items())
    assert [(table.name, table.reasons) for table in tables if table.verdict not in (State.OK, State.SKIPPED)] == []
    assert blame(tables) == ()
    ended = [(p.rank, p.done) for p in told if p.state is not None]
    assert sorted(ended) == [(rank, done) for rank in range(4) for done in range(1, len(tables) + 1)]
    sent = json.loads(json.dumps(as_fields(by_rank[3])))
    assert msgspec.convert(sent, tuple[CaseResult, ...]) == by_rank[3]
    now = reference_of(by_rank, 4)
    assert sum(name.startswith("benchmark") for name in now.figures) == 4
    assert now.figures["benchmark 16384 float32"].busbw_gbps
    save_reference(tmp_path / "reference.json", now)
    assert [r.is_slower for r in against(now, load_reference(tmp_path / "reference.json"))] == [False] * len(
        now.figures
    )


def test_a_rank_that_contributes_one_wrong_element_and_computes_slowly_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = """
    def all_reduce(tensor, *args, **kwargs):
        tensor[0] = 0
        return real_all_reduce(tensor, *args, **kwargs)
    def mm(*args, **kwargs):
        time.sleep(0.02)
        return real_mm(*args, **kwargs)
    dist.all_reduce, torch.mm = all_reduce, mm
    """
    put_fault(monkeypatch, tmp_path, 2, on_torch(fault))
    by_rank = run_members(4, ["all_reduce", "broadcast", "compute_speed"])
    tables = merge(by_rank, 4)
    assert all(table.verdict in (State.OK, State.SKIPPED) for table in tables if table.op != "all_reduce")
    whole = next(table for table in tables if table.name == "all_reduce 1003 float32")
    assert whole.states == dict.fromkeys(range(4), State.WRONG)
    assert whole.suspects == (0, 1, 2, 3)
    first = by_rank[0][whole.case].wrong
    assert first is not None
    assert (first.first_index, first.count, first.size) == (0, 1, 1003)
    assert float(first.expected) > float(first.got) >= 0
    (opinion,) = blame(tables)
    assert opinion.ranks == (2,)
    assert [slow.rank for slow in slow_ranks(by_rank)] == [2]


def test_a_rank_that_hangs_inside_a_case_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = """
    def all_reduce(tensor, *args, **kwargs):
        if len(tensor) == 256:
            time.sleep(1000)
        return real_all_reduce(tensor, *args, **kwargs)
    dist.all_reduce = all_reduce
    """
    put_fault(monkeypatch, tmp_path, 1, on_torch(fault))
    by_rank = run_members(3, ["all_reduce"], Limits(case_s=3, start_s=50, settle_s=1))
    tables = merge(by_rank, 3)
    hung = next(table for table in tables if table.verdict is not State.OK)
    assert hung.name == "all_reduce 256 float32"
    assert hung.states == dict.fromkeys(range(3), State.HUNG)
    assert (hung.suspects, hung.because[:6]) == ((1,), "rank 1")
    assert "sitecustomize.py" in hung.reasons[1]
    assert {table.verdict for table in tables[hung.case + 1 :]} == {State.NOT_RUN}
    assert "all_reduce 256 float32" in tables[-1].reasons[0]
    assert [opinion.ranks for opinion in blame(tables)] == [(1,)]


def test_a_worker_that_never_comes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_fault(monkeypatch, tmp_path, 1, "import time; time.sleep(1000)")
    tables = merge(run_members(2, ["barrier"], Limits(case_s=5, start_s=12, settle_s=1)), 2)
    assert tables[0].name == "init_process_group"
    assert (tables[0].suspects, tables[0].verdict) == ((1,), State.HUNG)
    assert "not entered within 12 s" in tables[0].reasons[1]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_worker_dies_with_its_member(signo: signal.Signals) -> None:
    member = subprocess.Popen([sys.executable, "-c", MEMBER], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30 * slowness()
        while not (workers := _children(member.pid)) and time.monotonic() < until:
            time.sleep(0.02)
        (worker,) = workers
        while os.getsid(worker) != worker and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(member.pid, signo)
        assert member.wait(20 * slowness()) != 0
        while _is_alive(worker) and time.monotonic() < until:
            time.sleep(0.02)
        assert not _is_alive(worker)
    finally:
        member.kill()
        member.wait()


_BESIDE_OTHERS = """
import os, subprocess, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
torch.set_num_threads(1)
from unhang.check.collectives.operations import compute_speed
alone = compute_speed()
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
try:
    beside = [compute_speed() for _ in range(3)]
finally:
    for other in others:
        other.kill()
        other.wait()
print(min(one.median_s for one in beside) / alone.median_s)
"""


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not count who waits")
def test_a_rank_whose_processor_others_use_as_well_is_not_slow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BESIDE_OTHERS], capture_output=True, text=True, timeout=60 * slowness(), check=True
    )
    assert float(done.stdout) < 1.5
