"""How `assert_same` compares values, and what it does in a process that trains alone."""

from __future__ import annotations

import dataclasses
import enum
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unhang.inside.guards.agreement import assert_same, differences, in_text


@dataclasses.dataclass
class Config:
    size: int
    path: Path


class Colour(enum.Enum):
    RED = 1


class Odd:
    pass


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, np.int64(1)),
        (0.5, np.float32(0.5)),
        (True, np.bool_(True)),
        ({"b": 1, "a": [1, 2]}, {"a": (1, 2), "b": 1}),
        ({3, 1, 2}, {2, 3, 1}),
        ({1: "a", None: 2}, {None: 2, 1: "a"}),
        (float("nan"), float("nan")),
        (Config(3, Path("a")), Config(3, Path("a"))),
        (Namespace(lr=0.1, steps=3), Namespace(steps=3, lr=0.1)),
        (torch.zeros(3, 2), torch.ones(3, 2)),
        (torch.tensor(3), 3),
        (np.zeros((2, 2)), np.ones((2, 2))),
        (Odd(), Odd()),
        (lambda: 0, lambda: 0),
        (b"abc", bytearray(b"abc")),
    ],
)
def test_equal(one: object, other: object) -> None:
    assert in_text(one) == in_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, "1"),
        (1, True),
        ({"a": 1}, {"a": 2}),
        ({1: 0}, {"1": 0, "2": 0}),
        (Config(3, Path("a")), Config(3, Path("b"))),
        (torch.zeros(3, 2), torch.zeros(2, 3)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.tensor([3.0]), torch.tensor([4.0])),
        (np.zeros(3), np.zeros(4)),
        (Colour.RED, 1),
        (Odd(), Colour.RED),
        (torch.float32, torch.float64),
        (torch.device("cpu"), torch.device("meta")),
        (list(range(10_000)), [*range(9_999), 0]),
        (b"abc", b"abd"),
    ],
)
def test_different(one: object, other: object) -> None:
    assert in_text(one) != in_text(other)


def test_a_long_value_is_its_beginning_and_a_hash() -> None:
    text = in_text(list(range(10_000)))
    assert text.startswith("[0, 1, 2, 3,")
    assert "... (58890 characters, sha256 " in text
    assert len(text) < 160


def test_what_cannot_be_compared_is_no_error() -> None:
    itself: list[Any] = []
    itself.append(itself)
    assert in_text(itself) == "<list>"
    assert in_text(torch.zeros(1, device="meta")) == '"Tensor of torch.float32, shape [1]"'


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["32"] * 4, ""),
        (["32", "32", "64", "32"], "ranks 0, 1, 3 have 32, rank 2 has 64"),
        (["1", "2"], "rank 0 has 1, rank 1 has 2"),
        (["1", "2", "2", "3"], "ranks 1, 2 have 2, rank 0 has 1, rank 3 has 3"),
    ],
)
def test_the_minority_is_named(texts: list[str], words: str) -> None:
    assert differences(texts) == words


def test_of_many_values_the_first_are_named() -> None:
    assert differences([str(rank) for rank in range(100)]).endswith("rank 7 has 7, and 92 more values")


def test_alone_every_value_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert assert_same("batch_size", 32)
    assert capsys.readouterr().err == "[train_setup] batch_size = 32\n"


def test_what_to_do_must_be_known() -> None:
    with pytest.raises(ValueError, match="must be 'raise' or 'warn'"):
        assert_same("batch_size", 32, on_differ="stop")  # type: ignore[arg-type]
