"""Connections that get rid of nothing, and devices: what of them is seen, and said."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.attach.test_standing import case_of, rank_at, text_of
from unhang.attach import processes as transport


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            yield near, far


def test_what_the_other_side_does_not_take_is_unsent(connection: tuple[socket.socket, socket.socket]) -> None:
    near, _ = connection
    peer = "{}:{}".format(*near.getpeername())
    assert peer not in [w["peer"] for w in transport.unsent(os.getpid())]
    near.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while sent < 1 << 30:
            sent += near.send(bytes(1 << 20))
    assert sent < 1 << 30
    (stuck,) = [w for w in transport.unsent(os.getpid()) if w["peer"] == peer]
    assert 0 < stuck["bytes"] <= sent


def test_of_a_process_that_is_gone_there_is_nothing(tmp_path: Path) -> None:
    assert transport.unsent(4711, tmp_path) == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [("0100007F:1F90", "127.0.0.1:8080"), ("0000000000000000FFFF00000100007F:0050", "127.0.0.1:80")],
)
def test_addresses_of_the_kernel(given: str, shown: str) -> None:
    assert transport._address(given) == shown


def fake_nvml(pids: list[int], busy: list[int]) -> Any:
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(pids),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda index: SimpleNamespace(gpu=busy[index]),
        nvmlDeviceGetComputeRunningProcesses=lambda index: [SimpleNamespace(pid=pids[index]), SimpleNamespace(pid=1)],
    )


def test_devices_by_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "load_nvml", lambda: fake_nvml([70, 71], [100, 0]))
    assert transport.devices([70, 71, 72]) == {70: {"device": 0, "busy": 100}, 71: {"device": 1, "busy": 0}}


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> Any:
        raise ImportError

    monkeypatch.setattr(transport, "load_nvml", no_library)
    assert transport.devices([70]) == {}


def test_an_idle_device_among_busy_ones_is_said_and_nobody_is_accused() -> None:
    ranks = [rank_at(r, "all_reduce") for r in range(4)]
    seen = [replace(e, look=replace(e.look, device=e.rank, busy=0 if e.rank == 2 else 100)) for e in ranks if e.look]
    text = text_of(case_of(*seen))
    assert "the devices of ranks 0, 1, 3 are busy, that of rank 2 is not" in text
    assert "nobody is accused" in text


def test_data_that_is_not_taken_is_said() -> None:
    ranks = [rank_at(r, "all_reduce") for r in range(2)]
    seen = [
        replace(e, look=replace(e.look, unsent=(("10.0.0.3:4000", 4096),) if e.rank else ())) for e in ranks if e.look
    ]
    assert "rank 1 has 4096 bytes for 10.0.0.3:4000 that are not taken" in text_of(case_of(*seen))
