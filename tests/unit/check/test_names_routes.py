"""Names and routes: answers, errors, and limits."""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import pytest

from unhang.check.network.addresses import can_bind, connect_outcome, outcome_of, resolve, source_address
from unhang.check.network.measuring import read_tcp_state


def _rows(*addresses: str) -> list[tuple[Any, ...]]:
    return [(0, 0, 0, "", (address, 0)) for address in addresses]


def test_addresses_keep_their_order_and_come_once() -> None:
    found = resolve("node0", 5, lambda *_, **__: _rows("fd00::1", "10.0.0.1", "fd00::1"))
    assert found.addresses == ("fd00::1", "10.0.0.1")
    assert not found.error


def test_a_name_that_does_not_exist() -> None:
    def ask(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert resolve("nowhere", 5, ask).error == "Name or service not known"


def test_a_resolver_that_does_not_answer_costs_the_limit_only() -> None:
    done = threading.Event()

    def ask(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        done.wait(20)
        return []

    found = resolve("slow", 0.05, ask)
    done.set()
    assert found.error == "no answer within 0.05 s"
    assert found.addresses == ()


def test_a_name_that_is_no_name() -> None:
    assert resolve("a" * 300, 5).error


def test_routes() -> None:
    assert source_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(OSError, match=r"unreachable|Invalid argument"):
        source_address("fe80::1")
    assert can_bind("127.0.0.1")
    assert not can_bind("192.0.2.77")
    assert not can_bind("no address")


def test_outcomes_of_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connect_outcome("127.0.0.1", port, 5) == "connected"
    assert connect_outcome("127.0.0.1", port, 5) == "refused"
    assert outcome_of(TimeoutError()) == "timed out"
    assert outcome_of(OSError(errno.EHOSTUNREACH, "")) == "no route"
    assert outcome_of(OSError(errno.EMFILE, "")) == "failed"


def test_the_counters_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            client.sendall(b"x" * 100)
            assert peer.recv(100, socket.MSG_WAITALL) == b"x" * 100
            state = read_tcp_state(client)
    assert (state.segments, state.lost) == (1, 0)
    assert state.mss_bytes > 500
    assert state.path_mtu_bytes > state.mss_bytes
