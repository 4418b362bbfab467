"""Who answers a call, and when a rank is proven to wait in vain."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

from unhang.inside.guards.board import (
    Board,
    Presence,
    Roll,
    call_roll,
    connected,
    places,
    state_of,
    waits_in_vain,
)
from unhang.inside.guards.ending import Watcher


def test_those_who_answer_and_those_who_do_not() -> None:
    store = dist.HashStore()
    boards = [Board(connected(store), rank, 4) for rank in range(4)]
    watchers = [
        Watcher(board, lambda _: None, None, Presence(board, threading.get_ident()).answer) for board in boards[:3]
    ]
    roll = call_roll(boards[0], limit_s=1.0)
    again = call_roll(boards[1], limit_s=1.0)
    for watcher in watchers:
        watcher.stop()
    assert (sorted(roll.answers), roll.silent) == ([0, 1, 2], (3,))
    assert (sorted(again.answers), again.silent) == ([0, 1, 2], (3,))
    assert "test_roll_call.py" in places(roll)
    assert places(roll).startswith("  rank 0, 1, 2: ")


def test_the_line_of_the_error_is_where_a_rank_is() -> None:
    board = Board(connected(dist.HashStore()), 0, 1)
    presence = Presence(board, threading.get_ident())
    try:
        raise ValueError("a")
    except ValueError as error:
        presence.came_from(error)
    watcher = Watcher(board, lambda _: None, None, presence.answer)
    roll = call_roll(board)
    watcher.stop()
    assert "(left it by ValueError)" in roll.answers[0]["at"]


def test_a_thread_that_has_ended_is_nowhere() -> None:
    assert state_of(-1)["at"] == ""


def _answer(**more: Any) -> dict[str, Any]:
    return {"at": "train.py:5", "token": "1:2", "waits": True, "made": 9, "completed": 8, **more}


@pytest.mark.parametrize(
    ("before", "now", "backend", "waiter"),
    [
        (_answer(), _answer(), "gloo", 1),
        (_answer(waits=False), _answer(waits=False), "nccl", 1),
        # It went on, or made another call meanwhile.
        (_answer(token="1:3"), _answer(), "gloo", None),
        (_answer(made=8), _answer(), "gloo", None),
        # It has made no more calls than this rank, or nobody knows.
        (_answer(made=8), _answer(made=8), "gloo", None),
        (_answer(made=-1), _answer(made=-1), "gloo", None),
        # It saves a checkpoint after a broadcast that the others did not need to wait for.
        (_answer(waits=False), _answer(waits=False), "gloo", None),
        (_answer(waits=False, completed=9), _answer(waits=False, completed=9), "nccl", None),
        (_answer(token=""), _answer(token=""), "gloo", None),
    ],
)
def test_only_a_wait_that_can_never_end_counts(
    before: dict[str, Any], now: dict[str, Any], backend: str, waiter: int | None
) -> None:
    assert waits_in_vain(Roll({1: before}), Roll({1: now}), {"made": 8}, backend) == waiter
    assert waits_in_vain(Roll(), Roll({1: now}), {"made": 8}, backend) is None
    assert waits_in_vain(Roll({1: before}), Roll({1: now}), {"made": -1}, backend) is None
