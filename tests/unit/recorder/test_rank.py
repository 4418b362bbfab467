from __future__ import annotations

import os

import pytest

from unhang.inside import rank


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "3", "SLURM_PROCID": "1"}, 3),
        ({"SLURM_PROCID": "1", "OMPI_COMM_WORLD_RANK": "2"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"PMI_RANK": "5"}, 5),
        ({"RANK": "", "SLURM_PROCID": "4"}, 4),
        ({"RANK": "zero"}, None),
        ({}, None),
    ],
)
def test_rank_of_the_environment(environ: dict[str, str], expected: int | None) -> None:
    assert rank.number_from(rank.RANK, environ) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/v/bin/python /v/bin/torchrun --nproc-per-node 2 train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python -u -X dev -m torch.distributed.launch train.py", True),
        ("python -m accelerate.commands.launch train.py", True),
        ("python -u train.py --launcher torchrun", False),
        ("python -m mypackage.train torchrun", False),
        ("python", False),
    ],
)
def test_launchers(command: str, expected: bool) -> None:
    assert rank.is_launcher(command.split()) is expected


def _at_import(monkeypatch: pytest.MonkeyPatch, command: str, **environ: str) -> int | None:
    monkeypatch.setattr(rank, "command_line", lambda: command.split(" ", 2))
    for name in (*rank.RANK, *rank.LOCAL_RANK, *rank.WORLD_SIZE, "NODE_RANK", rank.MARK):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return rank.rank_at_import()


def test_plain_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _at_import(monkeypatch, "python train.py", RANK="2") == 2


@pytest.mark.parametrize(("node", "expected"), [("0", 3), ("1", None), ("", None)])
def test_a_process_that_knows_its_number_on_the_first_node(
    node: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"LOCAL_RANK": "3", "WORLD_SIZE": "8", "NODE_RANK": node}
    assert _at_import(monkeypatch, "python train.py", **given) == expected
    assert _at_import(monkeypatch, "python helper.py", **given, UNHANG_RANK_ANNOUNCED=f"{expected}:1") is None


def test_launcher_with_the_rank_of_its_node_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _at_import(monkeypatch, "python /bin/torchrun train.py", RANK="1") is None


def test_spawned_worker_is_no_rank_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _at_import(monkeypatch, "python -c from multiprocessing.spawn import spawn_main", RANK="0") is None


def test_helper_started_by_a_rank_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _at_import(monkeypatch, "python helper.py", RANK="0", UNHANG_RANK_ANNOUNCED="0:1") is None
    own = f"0:{os.getpid()}"
    assert _at_import(monkeypatch, "python train.py", RANK="0", UNHANG_RANK_ANNOUNCED=own) == 0
    assert _at_import(monkeypatch, "python train.py", RANK="1", UNHANG_RANK_ANNOUNCED="0:1") == 1
