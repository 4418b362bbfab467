"""Who the ranks are, and what is said where they do not fit together."""

from __future__ import annotations

import argparse
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards.board import Board, connected
from unhang.inside.guards.identity import (
    check_mapping,
    describe,
    digest,
    faults,
    plain,
    settings_of,
)
from unhang.inside.rank import LOCAL_RANK, RANK, WORLD_SIZE, number_from


@pytest.mark.parametrize(
    ("names", "environ", "number"),
    [
        (RANK, {"RANK": "3", "SLURM_PROCID": "9"}, 3),
        (RANK, {"SLURM_PROCID": "9", "OMPI_COMM_WORLD_RANK": "8"}, 9),
        (RANK, {"OMPI_COMM_WORLD_RANK": "8", "PMI_RANK": "7"}, 8),
        (RANK, {"PMIX_RANK": "6", "PMI_RANK": "7"}, 6),
        (RANK, {"JSM_NAMESPACE_RANK": "5"}, 5),
        (RANK, {"RANK": "", "SLURM_PROCID": " 4 "}, 4),
        (RANK, {"RANK": "first", "PMI_RANK": "2"}, 2),
        (RANK, {"RANK": "-1"}, None),
        (RANK, {"RANK": "²"}, None),
        (RANK, {}, None),
        (WORLD_SIZE, {"WORLD_SIZE": "8", "SLURM_NTASKS": "4"}, 8),
        (WORLD_SIZE, {"SLURM_NTASKS": "4"}, 4),
        (LOCAL_RANK, {"MPI_LOCALRANKID": "1"}, 1),
        (LOCAL_RANK, {"LOCAL_RANK": "2", "SLURM_LOCALID": "1"}, 2),
    ],
)
def test_the_first_variable_that_holds_a_number(
    names: tuple[str, ...], environ: dict[str, str], number: int | None
) -> None:
    assert number_from(names, environ) == number


def _rank(rank: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank, "world_size": 4, "host": "a", "device": f"cuda:gpu-{rank}", "torch": "2.13", "code": "c0de",
        "config": "c0", "backend": "nccl", "timeout_s": 600.0, **more,
    }  # fmt: skip


RANKS = [_rank(r) for r in range(4)]


def test_ranks_that_fit_together() -> None:
    assert faults(RANKS) == []
    assert faults([]) == []
    on_cpu = [_rank(r, device="") for r in range(4)]
    assert faults(on_cpu) == []
    assert faults([_rank(r, host=f"h{r}", device="cuda:0/") for r in range(4)]) == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([*RANKS[:3], _rank(3, device="cuda:gpu-0")], "ranks 0, 3 on a use the same device cuda:gpu-0"),
        ([*RANKS[:1], *RANKS[2:]], "there is no rank 1"),
        ([*RANKS[:3], _rank(2, device="cuda:gpu-9")], "rank 2 is there 2 times"),
        ([*RANKS[:3], _rank(3, world_size=8)], "world_size differs: 3 ranks have '4', rank 3 has 8"),
        ([*RANKS[:3], _rank(3, code="other")], "code differs: 3 ranks have 'c0de', rank 3 has 'other'"),
        ([*RANKS[:3], _rank(3, torch="2.5")], "torch differs: 3 ranks have '2.13', rank 3 has '2.5'"),
        ([*RANKS[:3], _rank(3, config="c1")], "config differs: 3 ranks have 'c0', rank 3 has 'c1'"),
        ([*RANKS[:1], _rank(1, timeout_s=60.0)], "timeout_s differs: rank 0 has '600.0', rank 1 has 60.0"),
        (
            [_rank(0, config="c0", settings={"lr": "0.1"}), _rank(1, config="c1", settings={"lr": "0.2"})],
            "config 'lr' differs: rank 0 has '0.1', rank 1 has '0.2'",
        ),
    ],
)
def test_what_does_not_fit_is_named(ranks: list[dict[str, Any]], words: str) -> None:
    assert faults(ranks) == [words]


def test_only_some_of_many_are_named() -> None:
    (words,) = faults([_rank(r, code="x" if r < 60 else f"y{r}", device="") for r in range(100)])
    assert words.startswith("code differs: 60 ranks have 'x', rank 60 has 'y60'")
    assert words.endswith("and 32 more")


@dataclass
class _Config:
    lr: float
    names: tuple[str, ...]


class _Thing:
    pass


def test_equal_configurations_have_equal_digests_in_all_processes() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({1: "x", "y": None}) == digest({"y": None, 1: "x"})
    assert digest({"s": {"p", "q", "r"}}) == digest({"s": {"r", "q", "p"}})
    assert digest(_Thing()) == digest(_Thing())
    assert digest(_Config(0.1, ("a",))) != digest(_Config(0.2, ("a",)))
    assert digest(argparse.Namespace(lr=1)) != digest(argparse.Namespace(lr=2))
    assert plain(_Config(0.1, ("a",))) == {"lr": 0.1, "names": ["a"]}
    assert plain(Path("/a")) == "/a"
    endless: list[Any] = []
    endless.append(endless)
    assert digest(endless) == digest(endless)
    assert settings_of(endless) == settings_of("text") == {}


def test_secrets_are_compared_but_not_shown() -> None:
    settings = settings_of({"wandb_api_key": "s3cret", "lr": 0.1})
    assert settings["lr"] == "0.1"
    assert "s3cret" not in settings["wandb_api_key"]
    assert settings["wandb_api_key"] != settings_of({"wandb_api_key": "other"})["wandb_api_key"]


def _compared(whos: list[dict[str, Any]]) -> list[str]:
    """What each rank raises, in threads of one process."""
    store, results = dist.HashStore(), [""] * len(whos)

    def one(rank: int) -> None:
        try:
            check_mapping(Board(connected(store), rank, len(whos)), whos[rank], 20.0)
        except RanksDiffer as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(whos))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_every_rank_raises_the_same() -> None:
    assert _compared([describe(r, 3, None, config="c") for r in range(3)]) == [""] * 3
    texts = _compared([describe(r, 3, None, config="c" if r != 2 else "d") for r in range(3)])
    assert texts == ["config differs: 2 ranks have 'c', rank 2 has 'd'"] * 3


def test_a_rank_that_does_not_come_is_named() -> None:
    board = Board(connected(dist.HashStore()), 0, 3)
    with pytest.raises(RanksDiffer, match=r"2 of 3 ranks did not come within 0 s: 1, 2"):
        check_mapping(board, describe(0, 3, None), 0.05)


def test_a_failure_meanwhile_goes_before() -> None:
    store = dist.HashStore()
    boards = [Board(connected(store), rank, 3) for rank in range(3)]
    boards[2].announce({"rank": 2, "what": "ValueError: bad", "text": "its traceback"})
    for board in boards[:2]:
        with pytest.raises(PeerFailed, match=r"rank 2 failed: ValueError: bad\nits traceback"):
            check_mapping(board, describe(board.rank, 3, None), 60.0)


def test_a_rank_0_that_cannot_compare_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    boards = [Board(connected(store), rank, 2) for rank in range(2)]
    boards[1].put("who/1", {})
    monkeypatch.setattr("unhang.inside.guards.identity.faults", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check_mapping(boards[0], describe(0, 2, None), 60.0)
    assert check_mapping(boards[1], describe(1, 2, None), 60.0) == []
