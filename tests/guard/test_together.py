"""`together` in a process that trains alone, and the exchange below it where ranks are at different places."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards import exchange
from unhang.inside.guards.agreement import Agreement, together
from unhang.inside.guards.job import Job


def test_alone_the_condition_decides() -> None:
    assert together(torch.tensor(True)) == Agreement((0,), 1)
    assert together(True).all
    assert not together([])
    assert not together(0).all


@pytest.mark.parametrize(
    ("ranks", "is_any", "is_all"), [((), False, False), ((1,), True, False), ((0, 1, 2), True, True)]
)
def test_an_agreement_is_true_where_any_rank_said_yes(ranks: tuple[int, ...], is_any: bool, is_all: bool) -> None:
    agreement = Agreement(ranks, 3)
    assert (bool(agreement), agreement.any, agreement.all) == (is_any, is_any, is_all)


class Board:
    """Notices in a dict."""

    def __init__(self, world_size: int, **notices: Any) -> None:
        self.world_size, self.notices = world_size, {name.replace("__", "/"): value for name, value in notices.items()}

    def put(self, name: str, value: object) -> None:
        self.notices[name] = value

    def has(self, *names: str) -> bool:
        return all(name in self.notices for name in names)

    def get(self, name: str) -> Any:
        return self.notices[name]

    def failure(self) -> Any:
        return self.notices.get("failed")


class Work:
    """Of a collective that ends never, or with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def is_completed(self) -> bool:
        return self.error is not None

    def wait(self, _limit: timedelta | None = None) -> None:
        raise self.error or RuntimeError("Operation timed out!")


def asked(work: Work, board: Board | None, rows: list[list[int]] | None = None) -> exchange.Exchange:
    mine = Job(0, 0, 3, board=board, timeout_s=7.0)  # type: ignore[arg-type]
    memory = exchange._Memory(3)
    table = torch.tensor(rows or [[0] * exchange.WIDTH] * 3).flatten()
    memory.write(0, table.tolist()[: exchange.WIDTH])
    memory.tensors[0][:] = table
    return exchange.Exchange(mine, memory, work, 5)


def test_the_ranks_that_left_no_word_are_named() -> None:
    board = Board(3, waits__2=5, waits__1=4)
    with pytest.raises(RanksDiffer, match=r"^rank 1 did not come to together\(\) within 0.01 s$"):
        asked(Work(), board).wait(0.01, "together()")
    assert board.get("waits/0") == 5


def test_without_a_board_nobody_is_named() -> None:
    with pytest.raises(RanksDiffer, match=r"^not all ranks came to together\(\) within 0.01 s$"):
        asked(Work(), None).wait(0.01, "together()")


def test_the_limit_of_the_group_is_a_limit_too() -> None:
    error = RuntimeError("Timed out waiting 7000ms for recv operation to complete")
    with pytest.raises(RanksDiffer, match=r"^not all ranks came to together\(\) within 7 s$"):
        asked(Work(error), None).wait(60, "together()")


def test_a_failure_ends_the_wait() -> None:
    board = Board(3, failed={"rank": 2, "what": "ValueError: no", "text": "Traceback"})
    before = time.monotonic()
    with pytest.raises(PeerFailed, match=r"^rank 2 failed: ValueError: no\nTraceback$") as caught:
        asked(Work(), board).wait(60, "together()")
    assert time.monotonic() - before < 30
    assert caught.value.failure["rank"] == 2  # type: ignore[attr-defined]


def test_a_lost_connection_is_told_with_the_reason_if_there_is_one() -> None:
    broken = Work(RuntimeError("Connection reset by peer"))
    with pytest.raises(PeerFailed, match=r"^rank 2 failed: ValueError: no"):
        asked(broken, Board(3, failed={"rank": 2, "what": "ValueError: no"})).wait(1, "together()")
    with pytest.raises(exchange.ConnectionLost, match=r"lost, in together\(\): Connection reset by peer"):
        asked(broken, None).wait(1, "together()")


def test_places_in_words() -> None:
    board = Board(3)
    words = {11: ["epoch", "align()"], 12: ["call", "together()"]}
    rows = [[11, 2, 0, 1, 9], [11, 1, 6, 1, 9], [11, 1, 6, 0, 9]]
    exchanged = asked(Work(), board, rows)
    exchanged._job.guards["exchange words"] = words
    assert exchanged.places() == (
        "the ranks are not at the same place: ranks 1, 2 at batch 7 of epoch 1 of align(); rank 0 at batch 1 of epoch 2 of align()"
    )
    board.put("guard/13", ["call", "together(name='stop')"])
    rows = [[12, 4, 0, 1, 9], [13, 1, 0, 1, 9], [14, 1, 0, 0, 9]]
    exchanged = asked(Work(), board, rows)
    exchanged._job.guards["exchange words"] = words
    assert exchanged.places() == (
        "the ranks are not at the same place: rank 0 at call 4 of together(); "
        "rank 1 at call 1 of together(name='stop'); rank 2 at call 1 of another guard"
    )
    same = asked(Work(), board, [[12, 4, 0, 1, 9], [12, 4, 0, 0, 9], [12, 4, 0, 0, 9]])
    assert (same.places(), same.is_alike()) == ("", False)
