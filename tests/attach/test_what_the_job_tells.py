"""What a job tells who looks at it from outside: NCCL's RAS, and dumps that it has written itself."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from unhang.attach.folder import is_written_by
from unhang.attach.processes import Processes, listens_at, ras_answer

ANSWER = b"NCCL version 2.28.9 compiled with CUDA 13.0\n" * 3


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.settimeout(10)
        yield bound


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def answering(server: socket.socket, asked: list[bytes], closes: bool = True) -> threading.Thread:
    def serve() -> None:
        client, _ = server.accept()
        with client:
            asked.append(client.recv(100))
            client.sendall(ANSWER)
            if not closes:
                asked.append(client.recv(100))  # until the other side has had enough

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_ras_is_asked_where_a_rank_serves_it(server: socket.socket) -> None:
    asked: list[bytes] = []
    thread = answering(server, asked)
    assert f"127.0.0.1:{port_of(server)}" in listens_at(os.getpid())
    assert ras_answer([os.getpid()], f"localhost:{port_of(server)}", 5) == ANSWER
    thread.join(5)
    assert asked == [b"verbose status\n"]


def test_what_came_in_time_is_kept(server: socket.socket) -> None:
    answering(server, [], closes=False)
    began = time.monotonic()
    assert ras_answer([os.getpid()], f"localhost:{port_of(server)}", 0.3) == ANSWER
    assert time.monotonic() - began < 5


def test_nobody_else_is_asked(server: socket.socket) -> None:
    parent = os.getppid()
    assert f"127.0.0.1:{port_of(server)}" not in listens_at(parent)
    assert ras_answer([parent], f"localhost:{port_of(server)}", 5) == b""
    assert ras_answer([os.getpid()], "", 5) == b""  # nothing of ours has the usual port


def dump_of(thread: int | str) -> bytes:
    entry = {"profiling_name": "nccl:all_reduce", "thread_id": str(thread), "record_id": 0, "pg_id": 0}
    return pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [entry]}, 2)


def test_a_dump_of_another_job_is_known_by_its_threads() -> None:
    mine = Processes().by_pid[os.getpid()]
    assert is_written_by(mine, dump_of(threading.get_ident()))
    assert not is_written_by(mine, dump_of(0x7F0000001000))
    assert not is_written_by(mine, dump_of("main"))
    assert not is_written_by(mine, b"no dump")
