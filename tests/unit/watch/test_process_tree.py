from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unhang.watch.process_tree import Process, descendants_of, end, fork_worker, identify, send

ESCAPERS = """
import os, signal, sys, time
folder = sys.argv[1]
def stay(name, ignore=False):
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{folder}/{name}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")
    time.sleep(60)
    os._exit(0)
if os.fork() == 0:  # a session of its own
    os.setsid()
    stay("session")
if os.fork() == 0:  # a daemon: double fork
    os.setsid()
    if os.fork() == 0:
        stay("daemon")
    os._exit(0)
if os.fork() == 0:  # deaf
    stay("deaf", ignore=True)
if os.fork() == 0:  # stopped
    if os.fork() == 0:
        stay("below-stopped")
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
stay("root")
"""

KEEPER = """
import os, subprocess, sys, time
from pathlib import Path
from unhang.watch.process_tree import JobTree, become_subreaper, end, identify
folder, escapers = Path(sys.argv[1]), sys.argv[2]
become_subreaper()
spared = subprocess.Popen(["sleep", "60"])
tree = JobTree(os.getpid(), {identify(spared.pid)})
root = subprocess.Popen([sys.executable, "-I", "-S", "-c", escapers, str(folder)])
names = ("session", "daemon", "deaf", "below-stopped", "root")
while not all((folder / name).exists() for name in names):
    time.sleep(0.01)
pids = {int((folder / name).read_text()) for name in names}
assert pids <= {p.pid for p in tree.members()}, "a process escaped"
def reap():
    for p in list(pids):
        try: os.waitpid(-1, os.WNOHANG)
        except ChildProcessError: pass
assert end(tree.members, reap, grace_s=0.3) == []
print(sorted(pid for pid in pids if identify(pid)), identify(spared.pid) is not None)
os.kill(spared.pid, 9)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_no_process_of_the_job_escapes_and_no_other_is_touched(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEEPER, str(tmp_path), ESCAPERS], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("[] True\n", "")


def test_descendants_are_found_with_their_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    found = descendants_of(os.getpid())
    assert identify(sleeper.pid) in found
    assert os.getpid() not in {p.pid for p in found}


def test_a_pid_that_is_used_again_is_not_meant(sleeper: subprocess.Popen[bytes]) -> None:
    process = identify(sleeper.pid)
    assert process
    earlier = Process(process.pid, process.start_time - 1)
    assert not send(earlier, signal.SIGKILL)
    assert sleeper.poll() is None
    assert send(process, signal.SIGKILL)
    sleeper.wait()
    assert not send(process, signal.SIGKILL)
    assert identify(sleeper.pid) is None


def test_a_signal_is_sent_without_pidfd_too(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    process = identify(sleeper.pid)
    assert process
    assert send(process, signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM


def test_what_cannot_be_ended_is_returned_in_time() -> None:
    immortal = Process(2**22 + 1, 0)  # above the highest pid: signals reach nobody
    assert end(lambda: [immortal], grace_s=0.02, last_s=0.02) == [immortal]


def test_a_worker_has_only_what_it_may_keep(tmp_path: Path) -> None:
    out, pipe = os.pipe()

    def body() -> None:
        os.write(pipe, b" ".join(sorted(name.encode() for name in os.listdir("/proc/self/fd"))))
        raise RuntimeError("seen in the log")

    pid = fork_worker("worker", body, {pipe}, tmp_path / "errors")
    os.close(pipe)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    names = set(os.read(out, 1000).split())
    os.close(out)
    assert len(names - {b"0", b"1", b"2", b"%d" % pipe}) <= 2  # the log and the listing itself
    assert "RuntimeError: seen in the log" in (tmp_path / "errors").read_text()
