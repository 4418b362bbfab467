"""What runs in the training process says what it cannot do; it does not raise. Jobs with faults in us are in tests/ranks."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unhang
from unhang.inside.guards import job, process_group
from unhang.inside.guards.words import MOST_TEXT, MOST_WORDS, in_words, log, shortened, traceback_of


class _Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, _Full(), io.TextIOWrapper(io.BytesIO(), encoding="ascii")])
def test_lines_into_a_stream_that_takes_none(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    log("unhang", "données\nsecond line")


def test_each_line_bears_the_tag(capsys: pytest.CaptureFixture[str]) -> None:
    log("unhang", "a\nb")
    log("unhang", "")
    assert capsys.readouterr().err == "[unhang] a\n[unhang] b\n[unhang] \n"


class Mute(ValueError):
    def __str__(self) -> str:
        raise OSError("no message")

    __repr__ = __str__


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize("error", [Mute(), Mute("a"), ValueError(), ValueError("x" * 1_000_000), KeyError("\ud800")])
def test_words_for_any_exception(error: BaseException) -> None:
    text = traceback_of(_raised(error))
    assert "test_never_raises.py" in text
    assert len(text) < MOST_TEXT + 200
    assert in_words(error).startswith(type(error).__name__)
    assert len(in_words(error)) < MOST_WORDS + 100


def test_long_texts_keep_both_ends() -> None:
    text = shortened("a" * 50 + "-" * 1000 + "z" * 50, 90)
    assert text.startswith("a" * 30 + " [... 1010 characters left out ...] ")
    assert text.endswith("-" * 10 + "z" * 50)
    assert shortened("abc", 3) == "abc"


def test_without_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"built without torch\.distributed"), unhang.process_group():
        pass
    with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialised"):
        job.current()


def test_a_wrong_timeout_is_refused_before_anything_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'soon' is not a length of time"), unhang.process_group(timeout="soon"):
        pass
    monkeypatch.setenv("UNHANG_PG_TIMEOUT", "never")
    with pytest.raises(ValueError, match="UNHANG_PG_TIMEOUT: 'never' is not a length of time"), unhang.process_group():
        pass
    assert not dist.is_initialized()


def _meet(tmp_path: Path) -> dict[str, Any]:
    return {"init_method": f"file://{tmp_path / 'store'}", "rank": 0, "world_size": 1}


def test_our_own_start_that_fails_does_not_keep_the_training_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("injected")

    monkeypatch.setattr(process_group.identity, "describe", fail)
    with unhang.process_group("gloo", **_meet(tmp_path)) as mine:
        total = torch.ones(1)
        dist.all_reduce(total)
        assert (mine.world_size, mine.rank) == (1, 0)
    assert not dist.is_initialized()
    assert "the ranks could not be compared: MemoryError: injected" in capsys.readouterr().err


def test_the_job_follows_the_default_group(tmp_path: Path) -> None:
    with unhang.process_group("gloo", **_meet(tmp_path)) as mine:
        assert job.current() is mine
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'other'}", rank=0, world_size=1)
        assert job.current() is not mine
        assert job.current() is job.current()
    with pytest.raises(RuntimeError, match="not initialised"):
        job.current()
