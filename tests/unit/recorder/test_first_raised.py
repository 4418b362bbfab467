"""Of a chain of exceptions the one that began it is told, unless the program had taken it in hand."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unhang.inside.recorder.errors_seen import first_raised


class Folder:
    """Cannot be removed."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise PermissionError("cannot be removed")


def save() -> None:
    raise OSError("disk full")


def leaves_a_folder() -> None:
    with Folder():
        save()


def cleans_up() -> None:
    try:
        save()
    finally:
        os.rmdir("/nonexistent/own")


def cleans_up_twice() -> None:
    with Folder():
        cleans_up()


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"in {what}") from error


def converts_in_a_context() -> None:
    with named("save"):
        save()


def handles() -> None:
    try:
        save()
    except OSError:
        int("fallback")


def converts() -> None:
    try:
        save()
    except OSError as error:
        raise RuntimeError("could not save") from error


def hides() -> None:
    try:
        save()
    except OSError:
        raise RuntimeError("could not save") from None


def caught(function: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011
        function()
    return info.value


@pytest.mark.parametrize("function", [leaves_a_folder, cleans_up, cleans_up_twice])
def test_what_a_clean_up_raises_is_a_consequence(function: Callable[[], None]) -> None:
    first, frames = first_raised(caught(function))
    assert str(first) == "disk full"
    names = [frame[2] for frame in frames]
    assert names[0] == "save"
    assert function.__name__ in names
    assert names[-1] == "caught"
    assert len(names) == len(set(names))


@pytest.mark.parametrize("function", [handles, converts, hides, converts_in_a_context])
def test_what_a_handler_raises_is_the_programs_own(function: Callable[[], None]) -> None:
    error = caught(function)
    first, frames = first_raised(error)
    assert first is error
    assert [f[2] for f in frames][-1] == "caught"


def test_a_collectives_error_in_other_words_is_still_the_collectives(tmp_path: Path) -> None:
    library = tmp_path / "torch" / "distributed" / "collectives.py"
    library.parent.mkdir(parents=True)
    library.write_text("def all_reduce():\n    raise RuntimeError('Connection closed by peer')\n")
    space: dict[str, Callable[[], None]] = {}
    exec(compile(library.read_text(), str(library), "exec"), space)

    def says_it_anew() -> None:
        try:
            space["all_reduce"]()
        except RuntimeError as error:
            raise ValueError("training failed") from error

    def goes_on() -> None:
        try:
            space["all_reduce"]()
        except RuntimeError:
            int("a broken fallback")

    assert str(first_raised(caught(says_it_anew))[0]) == "Connection closed by peer"
    assert str(first_raised(caught(goes_on))[0]).startswith("invalid literal")


def test_an_exception_without_a_traceback_and_a_ring_of_causes_come_to_an_end() -> None:
    alone = ValueError("alone")
    assert first_raised(alone) == (alone, [])
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert first_raised(one)[0] is one
    assert sys.exc_info() == (None, None, None)
