"""The board over each kind of store, in one process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from unhang.inside.guards.board import MOST_TEXT, Board, connected, innermost
from unhang.inside.guards.ending import Watcher


@pytest.fixture(params=["tcp", "file", "hash"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "tcp":
        return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return dist.FileStore(str(tmp_path / "store"), 1) if request.param == "file" else dist.HashStore()


def test_notices_are_seen_by_the_other_rank(store: Any) -> None:
    first, second = (Board(connected(store), rank, 2) for rank in (0, 1))
    assert not second.has("a")
    first.put("a", {"x": [1, "ü\ud800"]})
    first.put("b", Path("of no JSON type"))
    # A TCPStore does not acknowledge what is set: another connection sees it a moment later.
    assert second.wait_for(["a", "b"], limit_s=5) == []
    assert second.has("a", "b")
    assert second.get("a") == {"x": [1, "ü\ud800"]}
    assert second.get_all(["b", "a"]) == ["of no JSON type", {"x": [1, "ü\ud800"]}]
    assert not second.has("a", "c")
    assert second.wait_for(["a", "c"], limit_s=0.05) == ["c"]
    assert [first.count("n"), first.count("n", 2), second.count("n", 1)] == [0, 2, 3]


def test_the_first_failure_stands(store: Any) -> None:
    first, second = (Board(connected(store), rank, 2) for rank in (0, 1))
    assert second.failure() is None
    mine = first.announce({"rank": 0, "what": "a", "text": "t" * 100_000})
    theirs = second.announce({"rank": 1, "what": "b", "by": None})
    assert mine == theirs == first.failure()
    assert (mine["rank"], mine["by"], mine["what"]) == (0, 0, "a")
    assert MOST_TEXT <= len(mine["text"]) < MOST_TEXT + 100
    assert first.count("seen") == 2
    second.see()
    assert first.count("seen") == 2
    assert first.wait_for(["never"], limit_s=60) == ["never"]


def test_runs_do_not_mix(store: Any) -> None:
    first = Board(connected(store), 0, 1, "0.1")
    first.put("a", 1)
    assert first.has("a")
    assert not Board(connected(store), 0, 1, "0.2").has("a")


def test_two_jobs_in_one_store_do_not_mix() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for trial in "ab":
        board = Board(connected(dist.PrefixStore(trial, store)), 0, 1)
        assert not board.has("failed")
        board.announce({"rank": 0, "what": trial})


def test_the_timeout_of_the_job_is_left_alone(store: Any) -> None:
    store.set_timeout(timedelta(seconds=123))
    Board(connected(dist.PrefixStore("p", store)), 0, 1)
    assert store.timeout == timedelta(seconds=123)
    assert innermost(dist.PrefixStore("p", dist.PrefixStore("q", store))).timeout == timedelta(seconds=123)


def _watch(board: Board) -> tuple[Callable[[], dict[str, Any] | str], Watcher]:
    heard: list[dict[str, Any] | str] = []
    came = threading.Event()

    def hear(what: dict[str, Any] | str) -> None:
        heard.append(what)
        came.set()

    watcher = Watcher(board, hear, lambda: hear("lost"))

    def wait() -> dict[str, Any] | str:
        assert came.wait(20)
        return heard[0]

    return wait, watcher


def test_the_watcher_calls_when_somebody_failed(store: Any) -> None:
    board = Board(connected(store), 0, 2)
    wait, watcher = _watch(board)
    Board(connected(store), 1, 2).announce({"rank": 1, "what": "why"})
    heard = wait()
    watcher.stop()
    assert isinstance(heard, dict)
    assert heard["what"] == "why"
    assert board.count("seen") == 2


class _Broken:
    """A store whose host has gone."""

    def __init__(self, port: int) -> None:
        self.host, self.port = "127.0.0.1", port

    def check(self, _keys: list[str]) -> bool:
        raise RuntimeError("recvValue failed")


def test_the_watcher_tells_a_store_that_is_gone_from_one_that_only_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        board = Board(_Broken(port), 0, 2)
        assert not board.store_is_gone()
    assert board.store_is_gone()
    wait, watcher = _watch(board)
    assert wait() == "lost"
    watcher.stop()


def test_large_jobs_look_less_often() -> None:
    assert [Board(dist.HashStore(), 0, size).poll_s for size in (2, 256, 1024, 100_000)] == [0.4, 0.4, 1.0, 2.0]
