"""What is written of the variables in a frame."""

from __future__ import annotations

import sys
from collections import deque
from types import FrameType, SimpleNamespace

import numpy
import torch

from unhang.inside.recorder.values import describe_variable, values_of


class Guarded:
    """Whose attributes must not be asked for."""

    def __init__(self) -> None:
        self.kept = 3

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)

    def __len__(self) -> int:
        raise AssertionError


class Rows(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise AssertionError


def held(
    rows: object, images: object, config: SimpleNamespace, name: str, guarded: object, unused: object
) -> dict[str, str]:
    """What is told of a frame whose code uses some attributes."""
    assert config.steps + config.inner.depth > 0
    assert all((rows, images is not None, name, guarded is not None, unused is not None))
    return values_of(sys._getframe())


def test_values_of_a_frame() -> None:
    config = SimpleNamespace(steps=4, inner=SimpleNamespace(depth=2), other=5)
    found = held(deque([1, 2, 3]), torch.zeros(2, 5), config, "run-1", Guarded(), SimpleNamespace(far=1))
    assert found.pop("name").startswith("a text (#")
    found = {k: v for k, v in found.items() if not k.startswith("@")}  # what pytest keeps
    assert found == {"len(rows)": "3", "images.shape": "[2, 5]", "config.steps": "4", "config.inner.depth": "2"}


def test_no_code_of_the_user_runs() -> None:
    found = held([0], Rows(), CONFIG, "a", Guarded(), Rows())
    assert "len(images)" not in found
    assert "guarded.kept" not in found


def test_items_and_their_order() -> None:
    assert items_of([3, 4]) == items_of([3, 4]) != items_of([4, 3])
    assert "items of ids" not in values_of(frame_with([object()]))


def items_of(ids: list[int]) -> str:
    return values_of(sys._getframe())["items of ids"]


def frame_with(ids: list[object]) -> FrameType:
    assert ids
    return sys._getframe()


CONFIG = SimpleNamespace(steps=1, inner=SimpleNamespace(depth=2))


class Rooms(torch.utils.data.Dataset[int]):
    def __init__(self, count: int) -> None:
        self.files, self.scale, self.name = list(range(count)), numpy.ones((count, 2)), "rooms"

    def __len__(self) -> int:
        raise AssertionError

    def __getitem__(self, i: int) -> int:
        raise AssertionError


def test_what_a_data_set_keeps_its_items_in() -> None:
    found = of_loader(torch.utils.data.DataLoader(Rooms(5), batch_size=2, sampler=range(5)))
    assert found["len(loader.dataset.files)"] == "5"
    assert found["loader.dataset.scale.shape"] == "[5, 2]"
    assert found["len(loader.sampler)"] == "5"
    assert "loader.dataset.name" not in found


def of_loader(loader: object) -> dict[str, str]:
    assert loader is not None
    return values_of(sys._getframe())


def test_equal_texts_have_one_mark() -> None:
    assert describe_variable("a" * 3) == describe_variable("aaa") != describe_variable("aab")
    assert describe_variable("a" * 10_000) is None


def test_a_module_gives_what_it_uses() -> None:
    scope: dict[str, object] = {"sys": sys, "values_of": values_of, "given": 3, "__secret": 4}
    exec(compile("epoch = 5\nfound = values_of(sys._getframe())\n", "train.py", "exec"), scope)
    found = scope["found"]
    assert isinstance(found, dict)
    assert found["epoch"] == "5"
    assert "given" not in found
