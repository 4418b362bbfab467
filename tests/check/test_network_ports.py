"""Ports that are held: by a live process, by an orphan of an earlier job, by our own; and the end of an orphan."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unhang.check.areas import CheckOptions, Context, Member, Participants
from unhang.check.network.ports import end_orphans, ports_of, read_holder, read_ports
from unhang.model import Reading

_LISTEN = (
    "import os, socket, sys, time\n"
    "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
    "double = sys.argv[1] == 'orphan'\n"
    "if double and os.fork(): os._exit(0)\n"
    "if double: os.setsid()\n"
    "if double and os.fork(): os._exit(0)\n"
    "print(os.getpid(), s.getsockname()[1], flush=True)\n"
    "os.close(1)\n"
    "time.sleep(50)\n"
)


def listener(how: str, **environ: str) -> tuple[subprocess.Popen[str], int, int]:
    """A process that listens: its starter, its pid, its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LISTEN, how, "--api-key=hush"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    pid, port = map(int, process.stdout.readline().split())
    process.stdout.close()
    return process, pid, port


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def orphan() -> Iterator[tuple[int, int]]:
    starter, pid, port = listener("orphan", RANK="3", WORLD_SIZE="4")
    starter.wait(10)
    holder = read_holder(pid)
    assert holder is not None
    yield pid, port
    if is_alive(pid) and read_holder(pid) == holder:
        os.kill(pid, signal.SIGKILL)


def check(*arguments: str, **environ: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The command as one process."""
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "check", "--only", "network", "--format", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=40,
        env={**os.environ, **environ},
    )
    return done.returncode, json.loads(done.stdout)


def context(*ports: int, **member: int) -> Context:
    one = Member(host="here", **member)
    return Context(Participants(one), CheckOptions(ports=ports), {})


def read_one(port: int) -> Reading:
    (found,) = [r for r in read_ports(context(port)) if isinstance(r, Reading) and r.subject == str(port)]
    return found


def test_a_live_holder_and_an_orphan_are_told_apart(orphan: tuple[int, int]) -> None:
    process, pid, port = listener("live", RANK="0")
    try:
        code, report = check("--ports", str(orphan[1]), MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
    finally:
        process.kill()
        process.wait()
    assert code == 1
    titles = {f["title"].split()[1]: f["title"] for f in report["findings"] if f["rule"] == "port-held"}
    assert f"is held by a live process: {sys.executable}" in titles[str(port)]
    assert f"(pid {pid}, " in titles[str(port)]
    assert "(MASTER_PORT)" in titles[str(port)]
    assert "is held by an orphan of an earlier job" in titles[str(orphan[1])]
    assert f"(pid {orphan[0]}, " in titles[str(orphan[1])]
    assert "hush" not in json.dumps(report)


def test_a_free_port_and_our_own(unused_port: int) -> None:
    assert read_one(unused_port)["is_free"] is True
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        reading = read_one(int(own.getsockname()[1]))
    assert reading["is_free"] is False
    assert reading["is_ours"] is True
    assert reading["pid"] == os.getpid()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_connection_without_a_listener_holds_a_port_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        reading = read_one(int(client.getsockname()[1]))
    assert reading["is_free"] is False
    assert reading["listens"] is False
    assert reading["pid"] is None


def test_which_ports_matter() -> None:
    assert ports_of(context()) == {29500: "default"}
    assert ports_of(context(8500, rank=0, world_size=2, port=1234)) == {8500: "asked", 1234: "MASTER_PORT"}
    assert ports_of(context(rank=1, world_size=2, port=1234)) == {}


def test_an_orphan_is_ended_only_after_asking(orphan: tuple[int, int]) -> None:
    pid, port = orphan
    reading = Reading("network.port", str(port), read_one(port).fields, 0, platform.node())
    assert reading["is_orphan"] is True
    asked: list[str] = []
    said = list(end_orphans([reading], lambda text: bool(asked.append(text))))
    assert said == [s for s in said if s.endswith("left alone")]
    assert f"process {pid} " in asked[0]
    assert is_alive(pid)
    said = list(end_orphans([reading], lambda text: True))
    assert said[0].endswith(": ended")
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)
    assert next(iter(end_orphans([reading], lambda text: True))).endswith("had already ended")


def test_another_process_with_the_same_number_is_left_alone() -> None:
    process, pid, port = listener("live")
    try:
        holder = read_holder(pid)
        assert holder is not None
        assert not holder.is_orphan  # its parent lives
        fields = {"is_orphan": True, "pid": pid, "started_ticks": holder.started_ticks - 1, "command": "train.py"}
        reading = Reading("network.port", str(port), fields, 0, platform.node())
        assert "another process has its number" in next(iter(end_orphans([reading], lambda text: True)))
        elsewhere = Reading("network.port", str(port), fields, 0, "node7")
        assert "it is on node7" in next(iter(end_orphans([elsewhere], lambda text: True)))
        live = Reading("network.port", str(port), {**fields, "is_orphan": False}, 0, platform.node())
        assert list(end_orphans([live], lambda text: True)) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_process_that_ignores_term_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(50)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        holder = read_holder(process.pid)
        assert holder is not None
        from unhang.check.network.ports import end_process

        assert end_process(process.pid, holder.started_ticks, term_limit_s=0.2) == "killed"
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
