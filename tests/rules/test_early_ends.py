"""Loops that ended early on some ranks: the source of what they go over is mended, else nothing is claimed; beside each a look-alike."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.analyze.small_programs import frame, program
from unhang import testing
from unhang.analyze.program.early_ends import (
    leaked_stop,
    local_days,
    operand_behind,
    salted_hash,
    set_on_some,
    shared_place,
)
from unhang.fix import with_diff
from unhang.model import Case, Fix
from unhang.testing import judge, make_case

_READ = """\
import torch
import torch.distributed as dist
class Parser:
    def __call__(self, lines):
        cursor = iter(lines)
        return [next(cursor) for _ in range(3)]  # asks
def epoch(model, batches):
    for x in batches:  # head
        dist.all_reduce(x)  # call
def main():
    parser = Parser()
    for number in range(3):
        epoch(model, map(parser, blocks))
        dist.barrier()  # behind
dist.init_process_group("gloo")
main()
"""


def _job(file: Path, passes: int) -> Case:
    """Two ranks that make three rounds in each pass, and then rank 1 two, the other another one."""
    call, behind, main = frame(file, "call").line, frame(file, "behind").line, frame(file, "behind").line - 1
    names = {"call": f"main:{main}>epoch:{call}", "behind": f"main:{behind}"}
    one = [*[f"all_reduce[8]@{names['call']}"] * 3, f"barrier@{names['behind']}"]
    whole = one * passes + [f"all_reduce[8]@{names['call']}"] * 2
    calls = {0: [*whole, f"all_reduce[8]@{names['call']} !"], 1: [*whole, f"barrier@{names['behind']} !"]}
    calls[2] = calls[0]
    return make_case(calls, world=3, hang="suspected", source="there")


@pytest.mark.parametrize(
    ("old", "new", "is_told"),
    [
        ("", "", True),
        ("next(cursor)", "next(cursor, None)", False),
        ("map(parser, blocks)", "blocks", False),
        ("return [next(cursor) for _ in range(3)]", "yield next(cursor)", False),
        ("    parser = Parser()", "    parser = str", False),
    ],
)
def test_a_stop_that_leaks_out_of_what_map_calls(old: str, new: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _READ.replace(old, new) if old else _READ)
    found = leaked_stop(str(file), frame(file, "head").line)
    assert (found is not None) is is_told
    if found is not None:
        assert (found.at.line, found.asks, found.text) == (6, "next(cursor)", "map(parser, blocks)")


def test_one_that_is_caught_does_not_leak(tmp_path: Path) -> None:
    caught = "        try:\n            return next(cursor)  # asks\n        except StopIteration:\n            raise ValueError(lines)\n"
    file = program(tmp_path, _READ.replace("        return [next(cursor) for _ in range(3)]  # asks\n", caught))
    assert leaked_stop(str(file), frame(file, "head").line) is None


_READER = """\
class Reader:
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]
class Run:
    def __init__(self):
        self.reader = Reader()
        self.acc.register_for_checkpointing(self.reader)
    def train(self):
        for x in self.reader:  # head
            self.step(x)
    def back(self):
        self.acc.load_state(self.last)
"""


@pytest.mark.parametrize(
    ("old", "new", "is_told"),
    [
        ("", "", True),
        ("register_for_checkpointing(self.reader)", "register_for_checkpointing(self.meter)", False),
        ("self.acc.load_state(self.last)", "self.acc.save_state(self.last)", False),
        ("        self.acc.load_state(self.last)", "        if args.resume: self.acc.load_state(self.last)", False),
        ('return {"at": self.at}', "return gathered(self.at)", False),
    ],
)
def test_a_place_that_the_main_process_saves_for_all(old: str, new: str, is_told: bool, tmp_path: Path) -> None:
    file = program(tmp_path, _READER.replace(old, new) if old else _READER)
    found = shared_place(str(file), frame(file, "head").line)
    assert (found is not None) is is_told
    if found is not None:
        assert (found.what, found.state, found.loads) == ("self.reader", "{'at': self.at}", "self.at = state['at']")


_DAYS = """\
def days(week):
    for stamp, x in records(week):
        day = {call}
        yield day, x
def train(week):
    for day, x in days(week):  # head
        step(x)
"""


@pytest.mark.parametrize(
    ("call", "safe"),
    [
        ("time.localtime(stamp)", "time.gmtime(stamp)"),
        ("datetime.fromtimestamp(stamp)", "datetime.fromtimestamp(stamp, timezone.utc)"),
        ("datetime.fromtimestamp(stamp, tz=utc)", ""),
        ("time.gmtime(stamp)", ""),
    ],
)
def test_days_of_the_local_clock(call: str, safe: str, tmp_path: Path) -> None:
    file = program(tmp_path, _DAYS.format(call=call))
    found = local_days(str(file), frame(file, "head").line)
    assert (found.safe.partition("  ")[0] if found else "") == safe


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("return hash(name) % parts  # here", "name"),
        ("return abs(hash(str(name))) % parts", "str(name)"),
        ("return hash((name, 1)) % parts", ""),
        ("return hash(user_id) % parts", ""),
        ("return crc32(name) % parts", ""),
        ("return hash(name) == parts", ""),
        ("return hash(name) % parts\ndef hash(x):\n    return 1", ""),
        ("return hash(name) % parts\ndef more(x):\n    return hash(x) % 3", ""),
    ],
)
def test_what_is_shared_out_by_a_salted_hash(line: str, of: str, tmp_path: Path) -> None:
    file = program(tmp_path, f"def part(name, parts):\n    {line}\n")
    (file.parent / "other.py").write_text("def own(x):\n    return hash(x) % 7\n")  # another program of the folder
    found = salted_hash(str(file))
    assert (found.of if found else "") == of


_RESUMES = """\
class State:
    def __init__(self):
        self.epoch = 0
    def resume(self):
        if {test}:
            self.epoch, self.best = load(self.path)
def main(state):
    while state.epoch < 9:  # head
        state.epoch += 1
"""


@pytest.mark.parametrize(
    ("test", "rest"),
    [
        ("dist.get_rank() == 0 and exists(self.path)", "exists(self.path)"),
        ("is_main_process()", ""),
        ("exists(self.path)", None),
    ],
)
def test_a_place_that_one_rank_alone_reads(test: str, rest: str | None, tmp_path: Path) -> None:
    file = program(tmp_path, _RESUMES.format(test=test))
    found = set_on_some(str(file), str(file), frame(file, "head").line)
    assert (found.rest if found else None) == rest
    if found is not None:
        assert (found.at.line, found.sets, found.name) == (5, 6, "epoch")


@pytest.fixture
def first_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fix]:
    def of(text: str, passes: int = 2) -> Fix:
        file = program(tmp_path, text)
        os.utime(file, (0, 0))  # as old as the job, or older
        monkeypatch.setattr(testing, "_prime", lambda _: str(file))
        diagnosis = judge(_job(file, passes))
        assert diagnosis.findings[0].cause == "uneven-inputs"
        return with_diff(diagnosis).findings[0].fixes[0]

    return of


def test_the_source_is_mended_not_the_loop_cut(first_fix: Callable[..., Fix]) -> None:
    fix = first_fix(_READ)
    assert "read_alike(parser, blocks)" in fix.advice
    assert fix.mends


@pytest.mark.parametrize(("passes", "kind"), [(2, "loss"), (0, "")])
def test_a_loop_that_was_as_long_before_is_cut_as_a_stop_gap_alone(
    passes: int, kind: str, first_fix: Callable[..., Fix]
) -> None:
    fix = first_fix(_READ.replace("map(parser, blocks)", "blocks"), passes)
    assert "in_step" in fix.patch
    assert fix.kind == kind
    assert bool(fix.note) is bool(kind)


@pytest.mark.parametrize(
    ("test", "shown"),
    [
        ("diverged() or any_rank(diverged())", "any_rank(diverged())"),
        ("rank == 0 and not any_rank(x)", "not any_rank(x)"),
        ("a or b or any_rank(a or b)", "any_rank(a or b)"),
        ("a or any_rank(a) or b()", "any_rank(a)"),
        ("any_rank(x) or diverged()", None),
        ("x is not None and any_rank(x)", None),
    ],
)
def test_a_call_of_all_ranks_behind_what_may_decide_alone(test: str, shown: str | None) -> None:
    found = operand_behind(ast.parse(test, mode="eval").body, "any_rank")  # type: ignore[arg-type]
    assert (ast.unparse(found) if found is not None else None) == shown


@pytest.mark.parametrize("test", ["bad or any_rank(bad)", "any_rank(bad) or bad"])
def test_it_is_made_first_on_all_ranks(test: str, tmp_path: Path) -> None:
    source = (
        f"def main():\n    for x in batches:\n        step(x)\n        if {test}:\n            break\n    gather(x)\n"
    )
    program(tmp_path, source)
    calls = {r: ["all_reduce[1]@main:4>any_rank:9"] * 3 + ["all_reduce[1]@main:4>any_rank:9 !"] for r in (0, 2)}
    calls[1] = ["all_reduce[1]@main:4>any_rank:9"] * 3 + ["all_gather[8]@main:6 !"]
    case = make_case(calls, world=3, hang="suspected", source=source)
    first = judge(case).findings[0]
    asks_first = first.fixes[0].title.startswith("Make the call on every rank: `any_rank(bad)`")
    assert asks_first is test.startswith("bad")
