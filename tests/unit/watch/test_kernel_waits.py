"""In which system call a thread waits, on what."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.slowness import slowness

from unhang.watch.process import ProcessProbe, may_be_asked, talks_elsewhere, with_peers, workers_of_ray
from unhang.watch.process_tree import kernel_waits, sleep_left_s

BEGIN = "import fcntl, os, socket, sys, time; a, b = socket.socketpair(); r, w = os.pipe(); "
PROGRAMS = {
    "a.recv(1)": {"call": "recvfrom", "file": "socket"},
    "a.settimeout(99); a.recv(1)": {"call": "poll", "file": "socket"},
    "os.read(r, 1)": {"call": "read", "file": "pipe"},
    "os.mkfifo('f'); open('f')": {"call": "open", "file": "FIFO"},
    "time.sleep(99)": {"call": "nanosleep"},
    "fcntl.flock(open('held', 'w'), fcntl.LOCK_EX)": {"call": "flock", "file": "file {folder}/held", "holder": "{pid}"},
    "os.fork() or time.sleep(99); os.wait()": {"call": "wait4"},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_call_and_its_file_are_told(program: str, tmp_path: Path) -> None:
    wanted = {k: v.format(folder=tmp_path, pid=os.getpid()) for k, v in PROGRAMS[program].items()}
    with open(tmp_path / "held", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen([sys.executable, "-S", "-c", BEGIN + program], cwd=tmp_path, start_new_session=True)
        try:
            assert _comes(process.pid, wanted), kernel_waits(process.pid)
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def _comes(pid: int, wanted: dict[str, str]) -> bool:
    until = time.monotonic() + 10 * slowness()
    while time.monotonic() < until:
        if kernel_waits(pid).get(str(pid)) == wanted:
            return True
        time.sleep(0.02)
    return False


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert kernel_waits(process.pid) == {}


@pytest.mark.parametrize(("program", "least", "most"), [("time.sleep(500)", 400, 500), ("os.read(r, 1)", None, None)])
def test_how_long_a_sleep_still_lasts(program: str, least: float | None, most: float, tmp_path: Path) -> None:
    """Of a process that waits for something else it is not told."""
    process = subprocess.Popen([sys.executable, "-S", "-c", BEGIN + program], cwd=tmp_path, start_new_session=True)
    try:
        assert _comes(process.pid, {"call": "nanosleep"} if least else {"call": "read", "file": "pipe"})
        left = sleep_left_s(process.pid)
        assert left is None if least is None else left is not None and least < left <= most
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_a_child_that_waits_for_an_answer_is_told() -> None:
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', 'input()'], stdin=subprocess.PIPE).wait()"
    process = subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)
    try:
        until = time.monotonic() + 10 * slowness()
        while not (found := ProcessProbe(process.pid).read()["child_asks"]) and time.monotonic() < until:
            time.sleep(0.05)
        assert found
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.parametrize(("reads", "is_full"), [("pass", True), ("p.stdout.read()", False)])
def test_a_child_that_waits_for_room_in_a_pipe_is_told(reads: str, is_full: bool) -> None:
    child = "print('x' * 10**6, flush=True); import time; time.sleep(99)"
    program = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', {child!r}], stdout=-1); {reads}; p.wait()"
    process = subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)
    try:
        until = time.monotonic() + 10 * slowness()
        while {"call": "wait4"} not in kernel_waits(process.pid).values() and is_full and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1.0 * slowness())  # what is read passes through the pipe
        assert ProcessProbe(process.pid).read()["child_writes"] is is_full
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_a_worker_of_ray_says_its_call_in_its_title() -> None:
    begin = ["bash", "-c", "exec -a 'ray::{}' sleep 60"]
    names = ("Board.newer_than", "Board", "IDLE", "DashboardAgent")
    processes = [subprocess.Popen([*begin[:2], begin[2].format(name)]) for name in names]
    try:
        for _ in range(200):
            if len(workers_of_ray(p.pid for p in processes)) == 2:
                break
            time.sleep(0.02)
        assert workers_of_ray([os.getpid(), 1 << 30, *(p.pid for p in processes)]) == {
            processes[0].pid: "Board.newer_than",
            processes[1].pid: "Board",
        }
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_connection_on_this_host_is_none_to_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert not talks_elsewhere(os.getpid())
    assert not talks_elsewhere(1 << 30)


def test_a_connection_to_another_host_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel's own table, as it is for a process that has one: nothing is sent anywhere."""
    with socket.socket() as mine:
        inode = os.readlink(f"/proc/self/fd/{mine.fileno()}").removeprefix("socket:[").removesuffix("]")
        row = "0: 0202020A:9C40 {}:01BB 01 00000000:00000000 00:00000000 00000000 0 0 {} 1"
        for other, wanted in (("0302020A", True), ("0202020A", False)):
            table = "  sl  local_address ...\n" + row.format(other, inode) + "\n"
            monkeypatch.setattr(
                Path, "read_text", lambda self, table=table: table if str(self).endswith("/tcp") else ""
            )
            assert talks_elsewhere(os.getpid()) is wanted


ASKS = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.recv(1)"


@pytest.mark.parametrize("is_taken", [True, False])
def test_who_is_at_the_other_end_of_a_connection(is_taken: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = subprocess.Popen([sys.executable, "-S", "-c", ASKS, str(server.getsockname()[1])])
        taken = server.accept()[0] if is_taken else None
        try:
            assert _comes(process.pid, {"call": "recvfrom", "file": "socket"})
            found = with_peers(process.pid, kernel_waits(process.pid))
            assert found[str(process.pid)].get("peer") == str(os.getpid())
        finally:
            process.kill()
            process.wait()
            if taken is not None:
                taken.close()


@pytest.mark.parametrize(
    ("address", "is_meeting", "may"), [("127.0.0.1", False, False), ("", False, True), ("", True, False)]
)
def test_who_may_be_asked_from_outside(address: str, is_meeting: bool, may: bool) -> None:
    port = next(p for p in range(21000, 32000, 97) if _is_free(p))
    program = f"import socket, time; s = socket.create_server(('{address}', {port})); print(flush=True); time.sleep(99)"
    env = {**os.environ, "MASTER_PORT": str(port if is_meeting else 1)}
    process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, env=env)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert may_be_asked([process.pid]) is may
    finally:
        process.kill()
        process.communicate()


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False
