"""The examples in the docstrings of `align`, `assert_same` and `together` run as they are printed, on one rank and on two."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import unhang
from unhang.inside.guards.agreement import Agreement, assert_same, together
from unhang.inside.guards.align import align

from .guard_jobs import run

PUBLIC = {"align": align, "assert_same": assert_same, "together": together}
DOCUMENTED = [*PUBLIC.values(), Agreement]


def examples() -> list[str]:
    found: list[str] = []
    for thing in DOCUMENTED:
        doc = textwrap.dedent("    " + (thing.__doc__ or ""))
        codes = re.findall(r"^Example:\n((?:    .*\n|\n)+)", doc + "\n", re.MULTILINE)
        assert codes, thing
        found += [textwrap.dedent(code).strip() for code in codes]
    return found


@pytest.mark.parametrize("code", examples())
def test_alone(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, thing in PUBLIC.items():
        monkeypatch.setattr(unhang, name, thing, raising=False)
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})


def test_in_a_job_of_two(tmp_path: Path) -> None:
    names = "\n".join(f"unhang.{name} = {name}" for name in PUBLIC)
    body = "\n".join(["import unhang", names, "begin(20)", *examples(), "say('done')", "end()"])
    ended = run(tmp_path, 2, body)
    assert ended.said_by_all(2) == "done", ended
    assert "[train_setup] batch_size = 32" in ended.stderr, ended
