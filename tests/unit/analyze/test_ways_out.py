"""What led ranks past a line, and what goes on after an exception, read from the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.source import surroundings
from unhang.analyze.ways_out import caught_raise
from unhang.model import Frame
from unhang.rules.registry import judge
from unhang.testing import make_case

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
    assert (first.culprit_ranks, first.location and first.location.line) == ((1,), 7)
    assert (first.condition.text if first.condition else None) == expected
