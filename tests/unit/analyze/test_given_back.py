"""What a function takes and does not give back on every way; beside each a function that looks alike and does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program
from unhang.analyze.waits.given_back import Takes, kept_connections, kept_place, not_done
from unhang.analyze.waits.own_threads import ended_producer, not_told, not_told_by_work, untold, work_given
from unhang.model import Frame, RaisedError

_PLACES = """
class Pool:
    async def step(self, text):
        await self.slots.acquire()  # waits
{body}
"""
_LEAVES = "        if not text:\n            return None\n        self.slots.release()"
_AMONG_OTHERS = (
    "        if text in self.seen:\n            self.slots.release()\n            return None\n"
    "        if not text:\n            return 0\n        self.slots.release()\n        return 1"
)
_CATCHES = "        try:\n            self.work(text)\n            self.slots.release()\n        except ValueError:\n            print(text)"


@pytest.mark.parametrize(
    ("body", "leaves", "test"),
    [(_LEAVES, 6, "if not text"), (_CATCHES, 8, "except ValueError"), (_AMONG_OTHERS, 9, "if not text")],
    ids=["leaves", "catches", "one of three ways"],
)
def test_a_way_on_which_the_place_is_kept(body: str, leaves: int, test: str, tmp_path: Path) -> None:
    file = program(tmp_path, _PLACES.format(body=body))
    kept = kept_place(frame(file, "waits"), ())
    assert kept is not None
    assert (kept.leaves, kept.test, kept.give, kept.taken) == (leaves, test, "self.slots.release()", 4)


@pytest.mark.parametrize(
    "body",
    [
        "        try:\n            if not text:\n                return None\n        finally:\n            self.slots.release()",
        "        if not text:\n            self.slots.release()\n            return None\n        self.slots.release()",
        "        for word in text:\n            if not word:\n                break\n        self.slots.release()",
        "        try:\n            self.work(text)\n            self.slots.release()\n        except ValueError:\n            self.slots.release()",
        "        if not text:\n            return self.give()\n        self.slots.release()\n    def give(self):\n        self.slots.release()",
        "        return text  # somebody else gives it back",
        "        if text:\n            self.slots.release()\n            return 1\n        else:\n            self.slots.release()\n            return 2",
        "        self.slots.release()\n        if text:\n            return 1\n        return 2",
    ],
    ids=[
        "finally",
        "before it leaves",
        "leaves another loop",
        "where it is caught",
        "by a method",
        "elsewhere",
        "on either way",
        "at once",
    ],
)
def test_a_place_that_is_given_back(body: str, tmp_path: Path) -> None:
    assert kept_place(frame(program(tmp_path, _PLACES.format(body=body)), "waits"), ()) is None


def test_a_place_that_somebody_has_at_the_moment_is_not_kept(tmp_path: Path) -> None:
    file = program(tmp_path, _PLACES.format(body=_LEAVES))
    assert kept_place(frame(file, "waits"), [Frame(str(file), 5, "step")]) is None


_ITEMS = """
class Buffers:
    def fill(self, number):
        buffer = self.free.get()  # waits
        if {test}:
            {way}
        self.free.put({back})
"""


@pytest.mark.parametrize(
    ("test", "way", "back", "is_told"),
    [
        ("number % 2", "return 0", "buffer", True),
        ("number % 2", "return self.free.put(buffer)", "buffer", False),
        ("number % 2", "return 0", "number", False),
    ],
    ids=["kept", "given back", "no pool: another thing is put"],
)
def test_an_item_of_a_queue_that_is_a_pool(test: str, way: str, back: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _ITEMS.format(test=test, way=way, back=back))
    assert (kept_place(frame(file, "waits"), ()) is not None) is is_told


_DONE = """
def write(items):
    while True:
        item = items.get()
{body}
def main(items):
    items.join()  # waits
"""


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        ("        save(item)", True),
        ("        if not item:\n            continue\n        items.task_done()", True),
        (
            "        try:\n            save(item)\n            items.task_done()\n        except OSError:\n            pass",
            True,
        ),
        ("        try:\n            save(item)\n        finally:\n            items.task_done()", False),
        ("        if not item:\n            items.task_done()\n            continue\n        items.task_done()", False),
    ],
    ids=["never", "on no way", "not where it fails", "always", "on each way"],
)
def test_an_item_of_which_nobody_says_that_it_is_done(body: str, is_told: bool, tmp_path: Path) -> None:
    assert (not_done(frame(program(tmp_path, _DONE.format(body=body)), "waits")) is not None) is is_told


_TOLD = """
def load(ready):
    read()  # raised
{tells}
def main(ready):
    ready.wait()  # waits
"""


@pytest.mark.parametrize(
    ("tells", "is_told"),
    [("    ready.set()", True), ("    other.set()", False), ("    print(ready)", False)],
    ids=["told later", "of another", "told elsewhere"],
)
def test_an_exception_before_the_word_that_is_awaited(tells: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _TOLD.format(tells=tells))
    error = RaisedError("ValueError", "no table", 1, (frame(file, "raised"),), handled=True)
    assert (not_told(frame(file, "waits"), [error]) is not None) is is_told
    assert not_told(frame(file, "waits"), []) is None


def test_an_exception_after_which_it_is_told_all_the_same(tmp_path: Path) -> None:
    text = "def load(ready):\n    try:\n        read()  # raised\n    finally:\n        ready.set()\ndef main(ready):\n    ready.wait()  # waits\n"
    file = program(tmp_path, text)
    assert not_told(frame(file, "waits"), [RaisedError("ValueError", "", 1, (frame(file, "raised"),))]) is None


_STREAMS = Takes(("get", "post"), "stream=True", ("close", "content", "text", "json"))


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        ("page = session.get(url, stream=True)\n    return page.status_code", True),
        ("return session.get(url, stream=True).status_code == 200", True),
        ("page = session.get(url, stream=True)\n    if not page.ok:\n        return None\n    return page.json()", True),
        ("page = session.get(url, stream=True)\n    if not page.ok:\n        self.missing.append(page)\n        return None\n    return page.json()", True),
        ("page = session.get(url, stream=True)\n    pages.append(page)", False),
        ("page = session.get(url, stream=True)\n    for line in page.iter_lines():\n        if line:\n            return line", True),
        ("page = session.get(url, stream=True)\n    if keep:\n        page.close()", True),
        ("page = session.get(url, stream=True)\n    for line in page.iter_lines():\n        print(line)", False),
        ("page = session.get(url, stream=True)\n    copy(page.raw, file)", False),
        ("page = session.get(url, stream=True)\n    return page", False),
        ("page = session.get(url, stream=True)\n    if page is not None:\n        page.close()", False),
        ("with session.get(url, stream=True) as page:\n        return page.status_code", False),
        ("return session.get(url, stream=True).json()", False),
        ("page = session.get(url)\n    return page.status_code", False),
        ("page = requests.get(url, stream=True)\n    return page.status_code", False),
    ],
)  # fmt: skip
def test_a_response_that_keeps_its_connection(body: str, is_kept: bool, tmp_path: Path) -> None:
    file = program(tmp_path, f"import requests\ndef size(session, url, file, keep):\n    {body}\n")
    assert bool(kept_connections(str(file), _STREAMS)) is is_kept


def test_a_connection_that_is_given_back_as_an_argument(tmp_path: Path) -> None:
    takes = Takes(("getconn",), "", ("putconn",))
    text = "def rows(pool):\n    conn = pool.getconn()  # waits\n    found = conn.execute('SELECT 1')\n    {}\n    return found\n"
    for line, is_kept in (("pool.putconn(conn)", False), ("print(found)", True)):
        file = program(tmp_path, text.format(line), f"{is_kept}.py")
        mine = takes.as_at(frame(file, "waits"))
        assert mine is not None
        assert bool(kept_connections(str(file), mine)) is is_kept
        assert takes.as_at(Frame(str(file), 3, "rows")) is None


_FEEDS = """
def feed(batches, items):
    for item in items:
        if item is None:
            {way}
        batches.put(item)
    {last}
def main(batches):
    batches.get()  # waits
"""


@pytest.mark.parametrize(
    ("way", "last", "is_told"),
    [
        ("return", "print()", True),
        ("break", "print()", True),
        ("break", "batches.put(None)", False),
        ("return batches.put(None)", "print()", False),
        ("continue", "print()", False),
    ],
)
def test_a_thread_that_leaves_the_queue_without_a_word(way: str, last: str, is_told: bool, tmp_path: Path) -> None:
    found = ended_producer(frame(program(tmp_path, _FEEDS.format(way=way, last=last)), "waits"))
    assert (found is not None) is is_told
    if found is not None:
        assert (found.leaves, found.function, found.test) == (5, "feed", "item is None")


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        ("if not broken:\n        done.set()", True),
        ("if broken:\n        return\n    done.set()", True),
        ("try:\n        send()\n        done.set()\n    except OSError:\n        pass", True),
        ("if broken:\n        print()\n    done.set()", False),
        ("if done is not None:\n        done.set()", False),
        ("try:\n        if broken:\n            return\n    finally:\n        done.set()", False),
        ("if broken:\n        done.set()\n    else:\n        done.set()", False),
        ("other.set()", False),
        ("left.count -= 1\n    if left.count == 0:\n        done.set()", False),
        ("parts[broken] = 1\n    if len(parts) == 4:\n        done.set()", False),
    ],
)
def test_a_way_on_which_nobody_is_told(body: str, is_told: bool, tmp_path: Path) -> None:
    text = f"def upload(done, broken):\n    {body}\ndef main(done):\n    done.wait()  # waits\n"
    assert (untold(frame(program(tmp_path, text), "waits")) is not None) is is_told


_WORK = """
def assemble(episodes, batches):
    while True:
        episode = episodes.get()
        batches.put(cut(episode))  # raises
def write(part, done):
    save(part)  # fails
    done.set()
def main(pool, batches, done):
    pool.submit(write, part, done)
    batches.get()  # takes
    done.wait()  # waits
    episodes.join()  # joins
"""


@pytest.mark.parametrize(
    ("text", "mark", "at", "give"),
    [
        (_WORK, "takes", "raises", "batches.put(cut(episode))"),
        (_WORK, "waits", "fails", "done.set()"),
        (_WORK, "takes", "fails", ""),
        (_WORK.replace("    save(part)  # fails\n    done.set()", "    done.set()\n    save(part)  # fails"), "waits", "fails", ""),
        (_WORK.replace("    save(part)  # fails", "    try:\n        save(part)  # fails\n    except OSError:\n        log()"), "waits", "fails", ""),
        (_WORK.replace("        batches.put(cut(episode))", "        cut(episode)"), "takes", "raises", ""),
    ],
    ids=["in its round", "behind it", "another wait", "told before", "caught there", "never told"],
)  # fmt: skip
def test_work_that_ended_before_it_told_those_that_wait(
    text: str, mark: str, at: str, give: str, tmp_path: Path
) -> None:
    file = program(tmp_path, text)
    error = RaisedError("IndexError", "list index out of range", 1, (frame(file, at),))
    found = not_told_by_work(frame(file, mark), [error])
    assert (found[1].give if found else "") == give


def test_where_work_is_given_away(tmp_path: Path) -> None:
    file = program(tmp_path, _WORK)
    given = work_given(frame(file, "fails"))
    assert given is not None
    assert (given[0].line, given[1]) == (10, "pool.submit(write, part, done)")
    assert work_given(frame(file, "raises")) is None
