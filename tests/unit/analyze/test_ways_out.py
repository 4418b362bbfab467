"""What goes on after an exception, read from the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.analyze.source import surroundings
from unhang.analyze.ways_out import caught_raise
from unhang.model import Frame

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
