"""Loops that sleep and look again, loops over sets, and what ends a `while`: read from the source."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from unhang.analyze.calls.loop_heads import loop_sorted_apart
from unhang.analyze.program.sets import loop_over_set
from unhang.analyze.program.source import surroundings
from unhang.analyze.program.ways_out import end_of_while, only_way_past
from unhang.analyze.waits.polling import made_on_one, name_by_hash, polled_for
from unhang.model import Frame


def written(folder: Path, text: str) -> tuple[str, int]:
    """A file with the text, and the line that ends with `# here`."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path), next(i for i, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# here"))


@pytest.mark.parametrize(
    ("text", "awaited"),
    [
        ("while not os.path.exists(done):\n    time.sleep(0.5)  # here\n", "`os.path.exists(done)` to come true"),
        ("while store.add(name, 0) < world:\n    sleep(1)  # here\n", "`not store.add(name, 0) < world` to come true"),
        (
            "while True:\n    if job.is_over():\n        break\n    time.sleep(poll)  # here\n",
            "`job.is_over()` to come true",
        ),
        (
            "def load():\n    while True:\n        try:\n            return open(path)\n        except OSError:\n            time.sleep(1)  # here\n",
            "`open(path)` to succeed",
        ),
        ("for attempt in range(9):\n    time.sleep(1)  # here\n", ""),  # it ends
        ("while step < total:\n    step += 1\n    time.sleep(1)  # here\n", ""),  # so does this
        ("while not is_done():\n    time.sleep(600)  # here\n", ""),  # who sleeps so long does not look for anything
        ("while not is_done():\n    work()  # here\n", ""),
        ("while not is_done():\n    work()\n    time.sleep(0.1)  # here\n", ""),
        ("while todo:\n    item = todo.pop()\n    time.sleep(0.1)  # here\n", ""),
        (
            "while state != 'done':\n    state = job.state()\n    time.sleep(1)  # here\n",
            "`state == 'done'` to come true",
        ),
        (
            "while not os.path.exists(done):\n    if claim(lock):\n        save(compute(), done)\n    else:\n        time.sleep(1)  # here\n",
            "`os.path.exists(done)` to come true",
        ),
    ],
)
def test_what_a_loop_waits_for_that_sleeps_and_looks_again(tmp_path: Path, text: str, awaited: str) -> None:
    assert polled_for(*written(tmp_path, text)) == awaited


@pytest.mark.parametrize(
    ("made", "over"),
    [
        ("names = {n for n in model}", "names"),
        ("names = set(model) - {'bias'}", "names"),
        ("names = {'a', 'b'}\n    names = names.union(more)", "names"),
        ("names = {1, 2, 3}", None),  # numbers come in one order everywhere
        ("names = sorted(set(model))", None),
        ("names = set(model) if all_of_them else list(model)", None),
        ("names = make()", None),
    ],
)
def test_a_loop_over_a_set_is_known_by_all_that_its_name_is_bound_to(
    tmp_path: Path, made: str, over: str | None
) -> None:
    text = (
        f"def main():\n    {made}\n    for i, name in enumerate(names):\n        dist.all_reduce(stats[name])  # here\n"
    )
    path, line = written(tmp_path, text)
    found = loop_over_set((Frame(path, line, "main"),))
    assert (found and found[1]) == over
    assert found is None or found[0].line == line - 1


@pytest.mark.parametrize(
    ("test", "end"),
    [
        ("epoch < 9 and not finished", "finished"),
        ("not done", "done"),
        ("epoch < 9", None),
        ("True", None),
        ("step < len(loader)", None),
    ],
)
def test_what_ends_a_while_is_what_is_no_counter(tmp_path: Path, test: str, end: str | None) -> None:
    path, line = written(tmp_path, f"while {test}:\n    dist.all_reduce(x)  # here\n")
    way = end_of_while(path, surroundings(path, line).loops[0])
    assert (way and way.text) == end


_LOOKS = """
class Cache:
    def path(self, epoch):
        key = %s
        return self.root / f"{key}.pt"

    def read(self, epoch):
        target = self.path(epoch)
        while not target.exists():
            time.sleep(0.5)  # here
"""


@pytest.mark.parametrize(
    ("key", "is_own"), [("hash(self.name) & 0xFFFF", True), ("epoch", False), ("self.hash(1)", False)]
)
def test_a_name_that_each_process_makes_for_itself(key: str, is_own: bool, tmp_path: Path) -> None:
    path, line = written(tmp_path, _LOOKS % key)
    found = name_by_hash(Frame(path, line, "read"))
    assert (found.line if found else None) == (4 if is_own else None)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("for t in sorted(tables, key=lambda t: t.rows):\n    t.sync()  # here\n", "lambda t: t.rows"),
        ("order = sorted(peers, key=size)\nfor p in order:\n    send(p)  # here\n", "size"),
        ("for t in sorted(tables):\n    t.sync()  # here\n", None),
        ("order = sorted(a, key=size)\norder = b\nfor p in order:\n    send(p)  # here\n", None),
    ],
)
def test_a_loop_that_goes_by_figures_of_the_rank(text: str, key: str | None, tmp_path: Path) -> None:
    found = loop_sorted_apart((Frame(*written(tmp_path, text), "main"),))
    assert (found.key if found else None) == key


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("def f(x):\n    if x < 1:\n        return\n    put(x)  # here\n", "if x < 1"),
        ("for i in xs:\n    if it > 20 and kl > 1:\n        continue\n    put(i)  # here\n", "if it > 20 and kl > 1"),
        ("for step in xs:\n    if step > 20:\n        continue\n    put(step)  # here\n", None),
        ("def f(x):\n    put(x)  # here\n    if x < 1:\n        return\n", None),
        ("def f(x):\n    if x < 1:\n        return\n    if x > 9:\n        return\n    put(x)  # here\n", None),
    ],
)
def test_the_one_test_that_leads_past_a_line(text: str, way: str | None, tmp_path: Path) -> None:
    found = only_way_past(Frame(*written(tmp_path, text), "f"))
    assert (found.text if found else None) == way


_MARKER = """\
def corpus(rank, local_rank, done):
    if rank == 0 and not done.exists():
        build(done)
    while not done.exists():
        time.sleep(0.5)  # here
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (_MARKER, 2),
        (_MARKER.replace("if rank == 0", "if local_rank == 0"), 0),
        (_MARKER.replace("if rank == 0 and not", "if not"), 0),
        (_MARKER.replace("while not done.exists()", "while not job.is_over()"), 0),
    ],
    ids=["on one rank", "on one of each node", "on all", "no file"],
)
def test_a_file_that_one_rank_of_the_job_makes(text: str, line: int, tmp_path: Path) -> None:
    path, at = written(tmp_path, text)
    found = made_on_one(Frame(path, at, "corpus"))
    assert (found[0].line if found else 0) == line
