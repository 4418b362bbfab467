"""What led ranks past a line, and what goes on after an exception, read from the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unhang.analyze.program.source import surroundings
from unhang.analyze.program.ways_out import catches_a_limit, caught_raise
from unhang.analyze.situation import Situation
from unhang.analyze.waits.open_calls import caught_left_s
from unhang.model import Frame, ThreadStack
from unhang.rules.registry import judge
from unhang.testing import make_case, path

_PROGRAM = """\
def step(x):
    if x.shape[1] != 4:
        raise ValueError("shape")
    reduce(x)

def main():
    for x in data:
        try:
            step(x)
        except ValueError:
            print("skipped")
    barrier()
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", (3, 10)),
        ("except ValueError", "except (KeyError, Exception)", (3, 10)),
        ("except ValueError", "except KeyError", None),  # it is not this one that is caught
        ('print("skipped")', "raise", None),
        ('        raise ValueError("shape")\n', "        return\n        #\n", None),
    ],
)
def test_an_exception_that_a_handler_lets_pass(
    tmp_path: Path, old: str, new: str, expected: tuple[int, int] | None
) -> None:
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM.replace(old, new) if old else _PROGRAM)
    lines = path.read_text().splitlines()
    at = lines.index("    reduce(x)") + 1, lines.index("            step(x)") + 1
    way = (Frame(str(path), at[1], "main"), Frame(str(path), at[0], "step"))
    (condition,) = surroundings(str(path), at[0]).conditions
    found = caught_raise(condition, way, 1)
    assert (tuple(f.line for f in found) if found else None) == expected


_CATCHES = """\
import contextlib

class PeerLost(RuntimeError):
    pass

def ask(group):
    TRY
        reduce(group)
    HANDLER

def main():
    try:
        ask(group)
    OUTER
        print("goes on")
"""
_RAISES_ANEW = "except RuntimeError as error:\n        raise PeerLost(1) from error"


@pytest.mark.parametrize(
    ("handler", "outer", "expected"),
    [
        ("except RuntimeError:\n        pass", "finally:", True),
        (
            "except RuntimeError as error:\n        if attempt == most:\n            raise\n        sleep(1)",
            "finally:",
            True,
        ),
        ("except RuntimeError:\n        raise", "finally:", False),
        ("except RuntimeError:\n        raise", "except RuntimeError:", True),
        ("except RuntimeError:\n        raise", "except ValueError:", False),
        ("except RuntimeError:\n        sys.exit(1)", "except Exception:", False),
        ("except (OSError, ValueError):\n        pass", "finally:", False),
        ("except RuntimeError as error:\n        raise error", "except RuntimeError:", True),
        (_RAISES_ANEW, "except PeerLost:", True),
        (_RAISES_ANEW, "except RuntimeError:", True),
        (_RAISES_ANEW, "except TimeoutError:", False),
        ("except RuntimeError:\n        raise\n    except Exception:\n        pass", "finally:", False),
        ("with contextlib.suppress(RuntimeError):", "finally:", True),
        ("with contextlib.suppress(OSError):", "finally:", False),
    ],
)
def test_whether_the_program_goes_on_after_a_limit(tmp_path: Path, handler: str, outer: str, expected: bool) -> None:
    path = tmp_path / "train.py"
    is_with = handler.startswith("with")
    inner = ("TRY", handler), ("    HANDLER\n", "") if is_with else ("HANDLER", handler)
    text = _CATCHES.replace("OUTER", outer)
    for old, new in inner if is_with else (("TRY", "try:"), inner[1]):
        text = text.replace(old, new)
    path.write_text(text)
    lines = [i + 1 for i, line in enumerate(text.splitlines()) if line.strip() in ("reduce(group)", "ask(group)")]
    way = (Frame(str(path), lines[1], "main"), Frame(str(path), lines[0], "ask"))
    assert catches_a_limit(way) is expected


_PROBES = """\
def probe():
    work = reduce(group, async_op=True)
    try:
        work.wait(LIMIT)
    except RuntimeError:
        RAISE
"""


@pytest.mark.parametrize(
    ("limit", "handler", "is_main", "group_s", "expected_s"),
    [
        ("seconds", "pass", True, 1800, 30),
        ("", "pass", True, 5, 5),
        ("", "pass", True, 1800, 0),
        ("seconds", "raise", True, 5, 0),
        ("", "raise", False, 5, 5),  # a thread that fails ends no process
        ("", "raise", False, 1800, 0),
    ],
)
def test_how_long_a_wait_lasts_that_ends_by_a_limit(
    tmp_path: Path, limit: str, handler: str, is_main: bool, group_s: float, expected_s: float
) -> None:
    file = tmp_path / "train.py"
    file.write_text(_PROBES.replace("LIMIT", limit).replace("RAISE", handler))
    stack = ThreadStack("t", path("probe:4>~comm", str(file)), is_main)
    calls = {0: ["barrier@main:9 !"], 1: ["a/all_reduce[8]@probe:2 !"]}
    case = make_case(calls, world=2, groups={"a": (0, 1)}, stacks={0: "main:9>~comm"}, more={1: {"stacks": (stack,)}})
    groups = tuple(replace(g, timeout_s=float(group_s)) if g.name == "a" else g for g in case.groups)
    left_s = caught_left_s(Situation(replace(case, groups=groups)), 1_000 * 10**9)
    assert left_s == pytest.approx(expected_s + 2 if expected_s else 0, abs=0.1)


_SKIPS = """\
def main(rank):
    for x in data:
        loss = step(x)
        if loss > 500:
            continue
        if GATE:
            reduce(metric)
"""
_BOTH = ["all_reduce[4]@main:3", "all_reduce[2]@main:7"]
_TWICE = [*_BOTH, _BOTH[1]]


@pytest.mark.parametrize(
    ("gate", "seen", "calls", "expected"),
    [
        ("not bad", " bad=False", _BOTH, "not loss > 500"),  # it held in the round that was left
        ("not bad", " bad=True", _BOTH, "not bad"),
        ("not bad", "", _BOTH, None),  # nothing tells which of the two it was
        ("rank != 1", "", _BOTH, "rank != 1"),  # it splits the ranks as they parted
        ("rank != 2", "", _BOTH, "not loss > 500"),
        ("not bad", " bad=False", _TWICE, None),  # an earlier round may have been left, with another value
    ],
)
def test_which_condition_led_past_a_line(gate: str, seen: str, calls: list[str], expected: str | None) -> None:
    open_call, next_call = f"{calls[-1]} !", f"{_BOTH[0]} !"
    shared = [*calls, *calls, *calls[:-1]]
    case = make_case(
        {1: [*shared, next_call], **{r: [*shared, open_call] for r in (0, 2, 3)}},
        stacks={1: f"main:3>~comm{seen}", **dict.fromkeys((0, 2, 3), f"main:7>~comm{seen}")},
        source=_SKIPS.replace("GATE", gate),
    )
    first = judge(case).findings[0]
    # The line of the test on data that led past it, or around it; else the line that was left out.
    at = {"not loss > 500": 4, "not bad": 6}.get(expected or "", 7)
    assert (first.culprit_ranks, first.location and first.location.line) == ((1,), at)
    assert (first.condition.text if first.condition else None) == expected
