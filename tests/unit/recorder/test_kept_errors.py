"""Exceptions that end work which was given away: the words of them are kept, and nothing of the program is held."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from unhang.inside.recorder import frames, kept_errors, recording


class Payload:
    """What a frame of the work holds."""


def fail(payload: Payload) -> None:
    raise KeyError(7)


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "current", SimpleNamespace(note=print))
    monkeypatch.setattr(kept_errors, "_kept", deque(maxlen=16))


def test_the_words_of_an_exception_stay_and_what_its_frames_had_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(Future[Any]):
        pass

    kept_errors.watch_futures(SimpleNamespace(Future=Watched))
    payload, future = Payload(), Watched()
    held = weakref.ref(payload)
    try:
        fail(payload)
    except KeyError as error:
        future.set_exception(error)
    del payload, future
    gc.collect()
    (found,) = kept_errors.kept_errors()
    assert (found["type"], found["message"], found["frames"][0][2]) == ("KeyError", "7", "fail")
    assert held() is None


def test_a_task_that_nobody_has_asked_is_found_and_one_that_was_asked_is_not() -> None:
    async def breaks() -> None:
        raise IndexError("cut short")

    async def main(is_asked: bool) -> list[dict[str, Any]]:
        task = asyncio.create_task(breaks())
        await asyncio.sleep(0)
        if is_asked:
            task.exception()
        found = [e for e in kept_errors.kept_errors() if e["frames"][0][2] == "breaks"]
        task.exception()
        return found

    assert [e["message"] for e in asyncio.run(main(False))] == ["cut short"]
    assert asyncio.run(main(True)) == []


def test_the_end_of_a_generator_or_of_the_program_is_no_exception() -> None:
    kept_errors.saw_kept(None, SystemExit(0))
    kept_errors.saw_kept(None, None)
    assert [e for e in kept_errors.kept_errors() if e["type"] == "SystemExit"] == []


def test_an_idle_worker_of_an_executor_has_no_work(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        (worker,) = pool._threads
        frame = frames.sys._current_frames()[worker.ident or 0]
        assert frames._given_at(frame) == ()
