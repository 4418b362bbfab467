"""The worker processes: the same answer as without them, whatever falls, and nothing left behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
from made_dumps import BOMBS, doubling_key
from slow_shards import same, slow_shard, sorted_absent, spoil, write_dumps
from tests.slowness import slowness

from unhang.errors import UnhangError
from unhang.model import Unavailable
from unhang.read.dumps import DumpFile, Shard, merge
from unhang.read.dumps import engine as engine_module
from unhang.read.dumps.engine import LocalEngine, plan, run_all

ATTACK = "it is damaged or an attack"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No child, no zombie, no open channel after any test."""
    gc.collect()  # what earlier tests have left
    open_files, before = len(os.listdir("/proc/self/fd")), psutil.Process().children()
    yield
    assert psutil.Process().children() == before
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_the_answer_is_that_of_one_process(tmp_path: Path) -> None:
    files = write_dumps(tmp_path, 40)
    seen: list[tuple[int, int]] = []
    got = run_all(LocalEngine(processes=2), slow_shard, files[::-1], lambda done, of: seen.append((done, of)))
    assert same(got, merge([slow_shard(files)]))
    assert len(got.table) == 240
    assert seen[-1] == (40, 40)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert got.table["rank"].flags.writeable


def test_two_runs_number_everything_alike(tmp_path: Path) -> None:
    files = write_dumps(tmp_path, 37)

    def slower(files: Sequence[DumpFile]) -> Shard:
        time.sleep(0.03 * (files[0].rank % 3))
        return slow_shard(files)

    a, b = (run_all(LocalEngine(processes=3), task, files) for task in (slow_shard, slower))
    assert (a.table.ops, a.table.sizes, a.table.groups) == (b.table.ops, b.table.sizes, b.table.groups)
    assert all(np.array_equal(a.table[name], b.table[name]) for name in a.table.columns)


def test_no_files() -> None:
    assert len(run_all(LocalEngine(), slow_shard, []).table) == 0


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_an_attack_costs_only_its_own_rank(tmp_path: Path, bomb: str) -> None:
    files = write_dumps(tmp_path, 6)
    files[3] = spoil(files[3], BOMBS[bomb])
    got = run_all(LocalEngine(processes=2, memory_bytes=200 << 20), slow_shard, files)
    assert sorted(got.dumps) == [0, 1, 2, 4, 5]
    assert [a.what for a in got.absent] == ["dump of rank 3"]
    assert "\n" not in got.absent[0].reason
    assert not (tmp_path / "hacked").exists()
    assert not Path("hacked").exists()


def test_a_dump_that_takes_for_ever_is_ended(tmp_path: Path) -> None:
    files = write_dumps(tmp_path, 5)
    files[2] = spoil(files[2], doubling_key())
    begun = time.monotonic()
    got = run_all(LocalEngine(processes=2, timeout_s=0.7), slow_shard, files)
    assert sorted(got.dumps) == [0, 1, 3, 4]
    assert got.absent == (Unavailable("dump of rank 2", f"decoding it takes longer than 0.7 s: {ATTACK}"),)
    assert time.monotonic() - begun < 5


def on_rank(rank: int, action: object) -> object:
    """A task that does something when it meets the rank."""

    def task(files: Sequence[DumpFile]) -> Shard:
        if any(file.rank == rank for file in files):
            action(files)  # type: ignore[operator]
        return slow_shard(files)

    return task


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_worker_that_falls_costs_only_the_file_that_fells_it(tmp_path: Path, how: signal.Signals) -> None:
    files = write_dumps(tmp_path, 20)

    def fall(_: object) -> None:
        faulthandler.disable()  # of the worker, whose stack would only be noise here
        os.kill(os.getpid(), how)

    got = run_all(LocalEngine(processes=2, timeout_s=0.3 * slowness()), on_rank(7, fall), files)  # type: ignore[arg-type]
    assert sorted(got.dumps) == [rank for rank in range(20) if rank != 7]
    assert [a.what for a in got.absent] == ["dump of rank 7"]
    assert got.absent[0].reason.endswith(ATTACK)


def test_a_file_that_fells_only_together_with_others_is_kept(tmp_path: Path) -> None:
    files = write_dumps(tmp_path, 20)

    def task(files: Sequence[DumpFile]) -> Shard:
        if len(files) > 1:
            faulthandler.disable()
            os.abort()
        return slow_shard(files)

    assert same(run_all(LocalEngine(processes=2), task, files), slow_shard(files))


def test_an_error_of_the_task_is_told_by_name(tmp_path: Path) -> None:
    files = write_dumps(tmp_path, 4)

    def fail(_: object) -> None:
        raise KeyError("pg")

    got = run_all(LocalEngine(processes=1), on_rank(1, fail), files)  # type: ignore[arg-type]
    assert sorted_absent(got) == [("dump of rank 1", "decoding it failed (KeyError: 'pg')")]
    assert sorted(got.dumps) == [0, 2, 3]


def test_memory_is_limited_and_grows_with_the_files(tmp_path: Path) -> None:
    files = write_dumps(tmp_path, 2)

    def hungry(files: Sequence[DumpFile]) -> Shard:
        for file in files:
            if file.rank == 1:
                assert len(bytearray(300 << 20))
        return slow_shard(files)

    got = run_all(LocalEngine(processes=1, memory_bytes=100 << 20), hungry, files)
    assert [a.what for a in got.absent] == ["dump of rank 1"]
    assert "memory" in got.absent[0].reason
    larger = [DumpFile(f.rank, f.path, size=8 << 20) for f in files]
    assert run_all(LocalEngine(processes=1, memory_bytes=100 << 20), hungry, larger).absent == ()


def test_leaving_early_ends_the_workers(tmp_path: Path) -> None:
    files, before = write_dumps(tmp_path, 64, entries=1), psutil.Process().children()
    shards = LocalEngine(processes=2).run(on_rank(63, lambda _: time.sleep(30)), files)  # type: ignore[arg-type]
    next(shards)
    assert len(psutil.Process().children()) > len(before)
    shards.close()  # type: ignore[attr-defined]


def test_an_interrupt_ends_the_workers_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    files = write_dumps(tmp_path, 2)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_all(LocalEngine(processes=2), on_rank(1, lambda _: time.sleep(30)), files)  # type: ignore[arg-type]
    timer.join()
    assert time.monotonic() - begun < 3


ORPHAN = """
import os, sys, time
from unhang.read.dumps.engine import LocalEngine, run_all
from unhang.read.dumps import DumpFile, Shard
def task(files):
    os.write(1, f"{os.getpid()}\\n".encode())  # at once, so that two of them do not mix
    if files[0].rank:
        while True: pass
    time.sleep(1)  # so that it is still there when its number has been read
    return Shard()
run_all(LocalEngine(processes=2, timeout_s=3), task, [DumpFile(r, "x") for r in range(2)])
"""


def test_workers_leave_when_their_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()
    assert len(workers) == 2
    end = time.monotonic() + 8
    while time.monotonic() < end and any(map(psutil.pid_exists, workers)):
        time.sleep(0.05)
    assert [worker for worker in workers if psutil.pid_exists(worker)] == []


def test_no_process_to_be_had_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(engine_module, "Worker", refuse)
    with pytest.raises(UnhangError, match=r"no process can be started .*temporarily unavailable"):
        run_all(LocalEngine(), slow_shard, write_dumps(tmp_path, 1))


@pytest.mark.parametrize(("count", "processes"), [(0, 2), (1, 2), (8, 2), (40, 2), (1024, 2), (16384, 8), (7, 3)])
def test_the_plan_is_bounded_and_complete(count: int, processes: int) -> None:
    files = [DumpFile(rank, "x", size=400_000) for rank in range(count)]
    shards = plan(files[::-1], processes)
    assert [file for shard in shards for file in shard] == files
    assert all(0 < len(shard) <= 64 for shard in shards)
    assert len(shards) >= min(count, processes)


def test_large_files_make_small_shards() -> None:
    assert [len(s) for s in plan([DumpFile(r, "x", size=60 << 20) for r in range(4)], 1)] == [1, 1, 1, 1]
