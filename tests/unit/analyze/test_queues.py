"""Queues whose fillers are alive: they wait themselves, or starve each other of items that go round; beside each a look-alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program
from unhang.analyze.waits.queues import kept_over_wait, one_end, taken_apart, waiting_fillers, wakes_no_loop
from unhang.model import Frame, ThreadStack
from unhang.testing import judge, make_case

_GET, _WAIT = Frame("/usr/lib/python3.11/queue.py", 171, "get"), Frame("/usr/lib/python3.11/threading.py", 327, "wait")

_ROUND = """\
class Store:
    def collect(self, size):
        rows = [self.full.get() for _ in range(size)]  # takes
        for i in rows:
            self.free.put(i)
        return rows
    def fill(self):
        while True:
            i = self.free.get()  # wants
            self.full.put(i)
    def feed(self):
        while True:
            self.out.put(self.collect(4))  # feeds
    def next(self):
        return self.out.get()  # asks
"""


def _threads(file: Path, takers: int = 2) -> list[ThreadStack]:
    takes = (_WAIT, _GET, replace(frame(file, "takes"), function="<listcomp>"), frame(file, "takes"))
    feeds = [ThreadStack(f"feed-{n}", (*takes, frame(file, "feeds")), is_main=False) for n in range(takers)]
    return [*feeds, ThreadStack("row-1", (_WAIT, _GET, frame(file, "wants")), is_main=False)]


@pytest.mark.parametrize(
    ("text", "takers", "is_told"),
    [
        (_ROUND, 2, True),
        (_ROUND, 1, False),
        (_ROUND.replace("self.free.put(i)", "use(i)"), 2, False),
        (_ROUND.replace("[self.full.get() for _ in range(size)]", "self.full.get()"), 2, False),
    ],
)
def test_threads_that_each_hold_some_of_what_goes_round(text: str, takers: int, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, text)
    found = taken_apart(_threads(file, takers))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.at.line, found.queue, found.back) == (3, "self.full", "self.free")


def test_fillers_that_wait_have_no_failure_to_pass_on(tmp_path: Path) -> None:
    file = program(tmp_path, _ROUND)
    found = waiting_fillers(frame(file, "asks"), _threads(file, 1))
    assert found is not None
    assert (found.threads, found.function, found.stands.line) == (("feed-0",), "feed", 3)
    at_work = [replace(t, frames=(frame(file, "takes"), frame(file, "feeds"))) for t in _threads(file, 1)]
    assert waiting_fillers(frame(file, "asks"), at_work) is None
    assert waiting_fillers(frame(file, "asks"), _threads(file, 0)) is None


@pytest.mark.parametrize(
    ("takers", "title", "kind"),
    [
        (2, "Let one thread at a time take its items of `self.full`", ""),
        (1, "Find out what feed-0 waits for", "look"),
        (0, "Let whoever fills the queue also put its failure there", "limit"),
    ],
)
def test_only_a_change_that_mends_is_called_one(takers: int, title: str, kind: str, tmp_path: Path) -> None:
    file = program(tmp_path, _ROUND)
    main = ThreadStack("MainThread", (_WAIT, _GET, frame(file, "asks")), is_main=True)
    case = make_case(
        {0: [], 1: ["all_reduce[8]@main:9 !"]}, world=2, hang="suspected", stacks={0: main, 1: "main:9>~comm"}
    )
    mine = replace(case.ranks[0], stacks=(main, *_threads(file, takers)))
    fix = judge(replace(case, ranks={**case.ranks, 0: mine})).findings[0].fixes[0]
    assert (fix.title.startswith(title), fix.kind) == (True, kind)


_LOOP = """\
class Feed:
    def start(self):
        threading.Thread(target=self.read).start()
    def read(self):
        self.queue.put_nowait(row())  # tells
    async def take(self):
        return await self.queue.get()  # asks
"""


@pytest.mark.parametrize(
    ("old", "new", "is_told"),
    [
        ("", "", True),
        ("threading.Thread(target=self.read).start()", "self.loop.run_in_executor(None, self.read)", True),
        ("threading.Thread(target=self.read).start()", "self.read()", False),
        ("self.queue.put_nowait(row())", "self.loop.call_soon_threadsafe(self.queue.put_nowait, row())", False),
        ("await self.queue.get()", "self.queue.get()", False),
        ("def read(self)", "async def read(self)", False),
    ],
)
def test_a_thread_that_fills_a_queue_of_an_event_loop(old: str, new: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _LOOP.replace(old, new) if old else _LOOP)
    found = wakes_no_loop(frame(file, "asks"))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.told.line, found.tells, found.given) == (5, "self.queue.put_nowait", "row()")


_BUFFER = """\
class Buffer:
    def add(self, rows):
        with self.lock:
            self.staged.put(rows)  # puts
    def drain(self):
        with self.lock:  # locks
            self.rows.append(self.staged.get())
"""
_PUT = Frame("/usr/lib/python3.11/queue.py", 140, "put")


@pytest.mark.parametrize(
    ("text", "stack", "ends"),
    [
        (_BUFFER, (_WAIT, _PUT), 7),
        (_BUFFER.replace("        with self.lock:  # locks\n    ", "        self.other = 1  # locks\n"), (_WAIT, _PUT), None),
        (_BUFFER.replace("        with self.lock:\n    ", "        self.rows = 1\n"), (_WAIT, _PUT), None),
        (_BUFFER, (), None),
    ],
    ids=["behind the lock", "who waits for another thing", "without the lock", "at work"],
)  # fmt: skip
def test_a_thread_that_waits_with_the_lock_that_others_want(
    text: str, stack: tuple[Frame, ...], ends: int | None, tmp_path: Path
) -> None:
    file = program(tmp_path, text)
    thread = ThreadStack("collector", (*stack, frame(file, "puts")), is_main=False)
    found = kept_over_wait(frame(file, "locks"), [thread])
    assert (found is not None) is (ends is not None)
    if found is not None and found.ends is not None:
        assert (found.holds.line, found.since, found.awaited, found.ends.line) == (4, 3, "a full queue", ends)


_END = """\
def read(paths, samples):
    for path in paths:
        samples.put(path)
    samples.put(END)
def stream(samples):
    while True:
        item = samples.get()  # takes
        if item is END:
            return
        yield item
"""


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (_END, True),
        (_END.replace("return", "samples.put(END)\n            return"), False),
        (_END.replace("    samples.put(END)\ndef", "    for _ in range(3):\n        samples.put(END)\ndef"), False),
        (_END.replace("            return", "            continue"), False),
        (_END.replace("    samples.put(END)\ndef", "def"), False),
    ],
    ids=["one for all", "put back", "one for each", "nobody leaves by it", "none at all"],
)
def test_a_last_item_that_one_takes_away_from_the_others(text: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, text)
    found = one_end(frame(file, "takes"))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.puts.line, found.queue, found.end, found.leaves) == (4, "samples", "END", 9)
