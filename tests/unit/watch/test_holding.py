"""A signal that ends the job is held until the watcher has kept what every rank does, and never longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unhang.watch.process_tree import Hold, launchers_of

Jobs = Any

# A launcher that hands SIGTERM down to its rank, as torchrun does; the rank says what comes.
LAUNCHER = """if 1:
    import os, signal, subprocess, sys
    rank = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1], *sys.argv[2:]])
    signal.signal(signal.SIGTERM, lambda *_: rank.terminate())
    sys.exit(rank.wait() % 256)
"""
RANK = """if 1:
    import os, signal, sys, time
    def end(*_):
        os.write(1, b'<end>')
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    os.makedirs(f"{sys.argv[1]}/ranks/r0-{os.getpid()}")
    os.write(1, b'ready')
    for _ in range(1200):  # a signal just before a long sleep would be handled after it
        time.sleep(0.05)
"""
SECURES = """
def watch(options, run_dir, root_pid, to_supervisor, from_supervisor):
    while data := os.read(from_supervisor, 100):
        if b"interrupted" in data:
            {answer}
        elif b"end" in data:
            return
"""
IS_HELD = """for pid in [root_pid]:
                state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
                (run_dir / "state").write_text(state)
                time.sleep(0.3)
                (run_dir / "secured").write_text(str(time.time()))
                os.write(to_supervisor, b'{"event": "secured"}\\n')"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.005)


def command(jobs: Jobs) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", LAUNCHER, RANK, str(jobs.run_dir)]


def read_until(process: Any, text: bytes) -> None:
    seen = b""
    while text not in seen:
        data = os.read(process.stdout.fileno(), 1000)
        assert data, seen
        seen += data


def send(process: Any, to_group: bool) -> float:
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGTERM)
    return time.time()


def test_the_signal_goes_on_when_the_evidence_is_there(jobs: Jobs) -> None:
    process = jobs.start(command(jobs), SECURES.replace("{answer}", IS_HELD), start_new_session=True)
    read_until(process, b"ready")
    send(process, to_group=False)
    read_until(process, b"<end>")
    assert time.time() >= float((jobs.run_dir / "secured").read_text())
    assert process.wait(20) == 0
    assert jobs.job_file()["interrupted_by"] == "SIGTERM"
    assert b"told to end here" in (jobs.run_dir / "output.log").read_bytes()


def test_a_watcher_that_does_not_answer_holds_it_for_two_seconds(jobs: Jobs) -> None:
    process = jobs.start(command(jobs), SECURES.replace("{answer}", "pass"), start_new_session=True)
    read_until(process, b"ready")
    sent = send(process, to_group=False)
    read_until(process, b"<end>")
    assert 1.9 < time.time() - sent < 6
    assert process.wait(20) == 0


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, RANK, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        read_until(process, b"ready")
        yield process
        process.terminate()


def test_the_launchers_stand_still_and_the_ranks_do_not(tmp_path: Path, launcher: subprocess.Popen[bytes]) -> None:
    hold = Hold(tmp_path, launcher.pid)
    rank = int(next((tmp_path / "ranks").iterdir()).name.split("-")[1])
    try:
        assert hold.is_needed
        until(lambda: state(launcher.pid) == "T")
        assert state(rank) != "T"
    finally:
        hold.let_launchers_go()
    until(lambda: state(launcher.pid) != "T")


def test_where_no_rank_has_registered_nothing_is_held(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        hold = Hold(tmp_path, process.pid)
        assert not hold.is_needed
        time.sleep(0.1)
        assert state(process.pid) != "T"
        process.kill()


def test_a_rank_is_no_launcher_of_its_own(launcher: subprocess.Popen[bytes]) -> None:
    assert launchers_of({launcher.pid}, launcher.pid) == []
    assert launchers_of({2**22 + 1}, launcher.pid) == []
