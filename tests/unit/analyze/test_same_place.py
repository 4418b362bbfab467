"""The same line of a program that lies in two folders."""

from __future__ import annotations

import pytest

from unhang.analyze.calls.schedule import Places, Stack
from unhang.model import Frame


def stack(*places: str) -> Stack:
    """`file:line`, innermost first; the outermost is at a module's own level."""
    frames = [Frame(file, int(line), "step") for file, line in (place.rsplit(":", 1) for place in places)]
    return (*frames[:-1], Frame(frames[-1].file, frames[-1].line, "<module>"))


def are_same(a: Stack, b: Stack) -> bool:
    return Places([a], [b]).of(a) == Places([b], [a]).of(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("/a/train.py:3",), ("/b/train.py:3",)),
        (("/a/x/train.py:3",), ("/b/train.py:3",)),
        (("/a/lib/s.py:3", "/a/train.py:9"), ("/b/lib/s.py:3", "/b/train.py:9")),
        (("/a/src/s.py:3", "/a/bin/train.py:9"), ("/c/d/src/s.py:3", "/c/d/bin/train.py:9")),
        (("/shared/s.py:3", "/a/train.py:9"), ("/shared/s.py:3", "/c/d/e/train.py:9")),
        (("/a/s.py:3", "/a/train.py:9"), ("/a/s.py:3", "/a/train.py:8")),
    ],
)
def test_the_same_line(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    assert are_same(stack(*a), stack(*b))


def test_a_launcher_that_both_use_is_no_script() -> None:
    ours, theirs = ((*stack(f"/{x}/s.py:3", f"/{x}/train.py:9"), *stack("/bin/launch.py:1")) for x in "ab")
    assert are_same(ours, theirs)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("/a/train.py:3",), ("/b/train.py:4",)),
        (("/a/train.py:3",), ("/b/eval.py:3",)),
        (("/p/one/s.py:3", "/p/train.py:9"), ("/p/two/s.py:3", "/p/train.py:9")),
        (("/a/one/s.py:3", "/a/train.py:9"), ("/b/two/s.py:3", "/b/train.py:9")),
        (("/a/s.py:3", "/a/train.py:9"), ("/b/lib/s.py:3", "/b/train.py:9")),
    ],
)
def test_another_line(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    assert not are_same(stack(*a), stack(*b))


def test_files_whose_folder_nobody_knows_keep_their_names() -> None:
    assert not are_same(stack("a/train.py:3"), stack("b/train.py:3"))
    assert are_same(stack("train.py:3"), stack("train.py:3"))
    assert Places([()], []).of(()) is None
