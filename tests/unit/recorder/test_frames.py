from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unhang.inside.recorder import frames, recording
from unhang.inside.recorder.recording import Page, append_json, write_json
from unhang.read.page import read_page


def test_user_frames_are_not_the_librarys() -> None:
    assert frames.is_user("/home/me/train.py")
    assert frames.is_user("train.py")
    for foreign in ("<frozen runpy>", "<string>", os.__file__, logging.__file__, frames.__file__, ""):
        assert not frames.is_user(foreign)
    assert not frames.is_user("/x/site-packages/torch/nn/modules/module.py")


def test_places_are_innermost_first() -> None:
    def inner() -> tuple[frames.Place, ...]:
        return frames.user_places(2)

    assert [function for _, _, function in inner()] == ["inner", "test_places_are_innermost_first"]


def test_text_is_cut_between_frames() -> None:
    places = tuple((f"/home/somebody/project/{'d' * 30}/file{i}.py", 1234, "function") for i in range(6))
    text = frames.encode("0", "", places)
    assert len(text) <= 192
    assert all(frame.endswith(":1234:function") for frame in text.decode().split("\x1f")[2].split("|"))


def test_frames_of_one_folder_share_its_path(tmp_path: Path) -> None:
    folder = f"/home/somebody/{'deep' * 16}/project"
    places = ((f"{folder}/a.py", 4, "f"), (f"{folder}/a.py", 9, "g"), (f"{folder}/b.py", 2, "main"), ("/c.py", 1, "h"))
    written = Page(str(tmp_path / "page.bin"))
    written.begin(recording.RECV, 3, 1, 7, frames.encode("0", "", places))
    (call,) = read_page(tmp_path / "page.bin").pending
    assert [(f.file, f.line, f.function) for f in call.frames] == list(places)


def test_path_that_is_too_long_keeps_its_end() -> None:
    text = frames.encode("group", "x" * 500, (("/" + "ä" * 300 + "/train.py", 12, "step"),))
    group, detail, places = text.decode().split("\x1f")
    assert len(text) <= 192
    assert (group, len(detail)) == ("group", 72)
    assert places.endswith("/train.py:12:step")


def test_separators_in_a_key_do_not_break_the_record() -> None:
    assert frames.encode("", "a\x1fb\0c", ()).count(b"\x1f") == 2


def test_traceback_places() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        found = frames.traceback_places(error.__traceback__)
    assert found[-1][2] == "test_traceback_places"
    assert found[0][2] == "raw_decode" or found[0][2] == "scan_once" or "json" in str(found[0][0])


def test_writing_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not write_json(str(tmp_path / "file" / "x.json"), {})
    assert not append_json(str(tmp_path / "file" / "x.jsonl"), {})


def test_values_that_are_not_json(tmp_path: Path) -> None:
    assert write_json(str(tmp_path / "x.json"), {"path": tmp_path, "odd": "\udc80"})
    assert json.loads((tmp_path / "x.json").read_text())["path"] == str(tmp_path)


def test_text_of_the_calling_line() -> None:
    def call() -> bytes:
        return frames.record_text("0", "key")

    first, second = [call() for _ in range(2)], call()
    texts = [text.decode().split("\x1f")[2].split("|")[:2] for text in (*first, second)]
    assert texts[0] == texts[1]
    assert texts[0][0].endswith(":call")
    assert texts[2][1] != texts[0][1], "another line of the same function"


def test_memory_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_MOST_CACHED", 20)
    for i in range(100):
        assert f"key{i}".encode() in frames.record_text("", f"key{i}")
    assert len(frames._texts) <= 20


def test_a_task_in_an_async_generator_stands_where_that_waits() -> None:
    async def items(queue: asyncio.Queue[int]) -> AsyncIterator[int]:
        while True:
            yield await queue.get()

    async def consume(queue: asyncio.Queue[int]) -> None:
        async for _ in items(queue):
            pass

    async def look() -> list[str]:
        task = asyncio.create_task(consume(asyncio.Queue()))
        await asyncio.sleep(0)
        described = frames._describe(task)
        task.cancel()
        return [function for _, _, function in described["frames"]]

    assert asyncio.run(look()) == ["get", "items", "consume"]
