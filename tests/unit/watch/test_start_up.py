"""While a rank that the others wait for still works, in its imports as a rule, the start is no hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.slowness import slowness

from unhang.analyze.situation import Situation
from unhang.model import Case
from unhang.testing import make_case, pending
from unhang.watch import RunOptions, evidence, ranks
from unhang.watch.agent import Agent
from unhang.watch.ranks import WatchedRank

# A launcher with one process below it, which computes or waits until stdin ends.
JOB = """
import os, sys, threading
def compute():
    while True:
        pass
child = os.fork()
if not child and sys.argv[1] == "works":
    threading.Thread(target=compute, daemon=True).start()
if child:
    print(child, flush=True)
sys.stdin.read()
os._exit(0) if not child else os.waitpid(child, 0)
"""
# The same where the launcher is in its rendezvous, and has no rank yet.
LAUNCHER = """
import sys, threading
def compute():
    while True:
        pass
if sys.argv[1] == "works":
    threading.Thread(target=compute, daemon=True).start()
print(0, flush=True)
sys.stdin.read()
"""
WAITING = [pending("init_process_group", where="main:3")]


@contextmanager
def job(does: str, *program: str) -> Iterator[tuple[int, int]]:
    """The pids of the launcher and of its rank."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", *(program or ("-c", JOB)), does],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.communicate(timeout=20 * slowness())


def start_up(absent: tuple[int, ...]) -> Case:
    return make_case({}, world=2, hang="suspected", pending={0: WAITING}, absent=absent)


def may_still_come(tmp_path: Path, does: str, case: Case, known: bool) -> bool:
    with job(does) as (launcher, rank):
        agent = Agent(RunOptions(report_dir=tmp_path), tmp_path, launcher, -1, -1)
        if known:
            folder = tmp_path / "ranks" / f"r1-{rank}"
            folder.mkdir(parents=True)
            (folder / "identity.json").write_text("{}")
            agent.ranks[folder.name] = WatchedRank(folder, 0.0)
        try:
            # A busy machine may give it no time for a moment: once is enough.
            return any(agent._may_still_come(Situation(case)) for _ in range(20 if does == "works" else 1))
        finally:
            for watched in agent.ranks.values():
                watched.close()


def test_a_rank_that_works_may_still_come_and_one_that_sleeps_may_not(tmp_path: Path) -> None:
    case = make_case({}, world=2, hang="suspected", pending={0: WAITING}, more={1: {"initialized": False}})
    assert may_still_come(tmp_path / "works", "works", case, known=True)
    assert not may_still_come(tmp_path / "waits", "waits", case, known=True)


def test_a_process_that_is_no_rank_yet_may_become_the_missing_one(tmp_path: Path) -> None:
    assert may_still_come(tmp_path, "works", start_up(absent=(1,)), known=False)
    assert not may_still_come(tmp_path, "waits", start_up(absent=(1,)), known=False)


def test_where_nobody_is_missing_the_work_of_others_is_no_reason_to_wait(tmp_path: Path) -> None:
    case = make_case({}, world=2, hang="suspected", pending=dict.fromkeys(range(2), WAITING))
    assert not may_still_come(tmp_path, "works", case, known=False)


@pytest.mark.parametrize("does", ["works", "waits"])
def test_only_a_launcher_that_waits_in_its_rendezvous_is_suspected(does: str, tmp_path: Path) -> None:
    """One that works there passes through it."""
    program = tmp_path / "rendezvous.py"
    program.write_text(LAUNCHER)
    out, told = os.pipe()
    try:
        with job(does, str(program)) as (launcher, _):
            agent = Agent(
                RunOptions(report_dir=tmp_path, stall_after_s=0.1 if does == "waits" else 0.3 * slowness()),
                tmp_path,
                launcher,
                told,
                -1,
            )
            for _ in range(60 if does == "waits" else 8):
                agent._on_silence(time.monotonic())
                if agent.verdict is not None:
                    break
                time.sleep(0.2)
    finally:
        os.close(told)
        os.close(out)
    assert (agent.verdict is not None) == (does == "waits")
    assert (tmp_path / "launcher.json").exists() == (does == "waits")


@pytest.mark.parametrize(("thread", "is_waiting"), [("MainThread", True), ("RendezvousKeepAliveTimer_0", False)])
def test_a_thread_that_keeps_the_rendezvous_alive_is_no_launcher_that_waits_in_it(
    thread: str, is_waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [
        {"filename": "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", "name": "_keep_alive", "line": 1}
    ]
    monkeypatch.setattr(evidence, "take_stacks", lambda pids: {1: [{"thread_name": thread, "frames": frames}]})
    assert bool(evidence.rendezvous_stacks([1])) == is_waiting


def test_ranks_that_run_without_the_recorder_are_said_and_nobody_is_suspected(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "if 'RANK' in os.environ: time.sleep(60)\n"
        "subprocess.run([sys.executable, __file__], env={**os.environ, 'RANK': '1'})\n"
    )
    (tmp_path / "launcher.py").write_text(program)
    (tmp_path / "ranks").mkdir()
    out, told = os.pipe()
    launcher = subprocess.Popen([sys.executable, str(tmp_path / "launcher.py")], start_new_session=True)
    try:
        until = time.monotonic() + 20 * slowness()
        while not ranks.unrecorded(launcher.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert ranks.unrecorded(launcher.pid) == [1]
        agent = Agent(RunOptions(report_dir=tmp_path, stall_after_s=0.1), tmp_path, launcher.pid, told, -1)
        time.sleep(0.2)
        agent._on_silence(time.monotonic())
        assert b"1 rank runs without unhang's recorder" in os.read(out, 4096)
        assert agent.verdict is None
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        os.close(told)
        os.close(out)
