"""The first line of every rule, as a reader sees it: one file, to be read as prose. UNHANG_UPDATE_SNAPSHOTS=1 writes it anew."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from tests.rules.cases import load_examples
from unhang.analyze.situation import Situation
from unhang.rules.registry import all_rules, judge
from unhang.rules.wording import both, told
from unhang.show.verdict import headline
from unhang.testing import Fires

FILE = Path(__file__).with_name("first_lines.txt")


@cache
def first_lines() -> str:
    lines = []
    for rule in all_rules():
        said = {}
        for example in load_examples()[rule.id]:
            if isinstance(example, Fires):
                situation = Situation(example.case)
                said[headline(judge(situation, [rule]), example.case, situation.waits)] = None
        shown = (re.sub(r"/(?:example|tmp)/[\w/.-]*/", "", line) for line in said)
        lines += [f"{rule.id}\n", *(f"    {line}\n" for line in dict.fromkeys(shown))]
    return "".join(lines)


def test_first_lines_are_exactly() -> None:
    text = first_lines()
    if os.environ.get("UNHANG_UPDATE_SNAPSHOTS"):
        FILE.write_text(text, encoding="utf-8")
    assert text == FILE.read_text(encoding="utf-8")


def test_each_verb_has_one_tense() -> None:
    """In all that is said, whether the job runs or is over."""
    for rule in all_rules():
        for example in load_examples()[rule.id]:
            if isinstance(example, Fires):
                assert "⟨" not in str(judge(Situation(example.case), [rule]).findings), rule.id


def test_a_job_that_runs_is_told_of_in_the_present() -> None:
    text = "rank 1 ⟨waits|waited⟩ in a call, and the others {are|were} gone"
    assert told(text, is_over=False) == "rank 1 waits in a call, and the others {are|were} gone"
    assert told(text, is_over=True) == "rank 1 waited in a call, and the others {are|were} gone"
    assert told(both("waits for it"), is_over=True) == "waited for it"
    assert both("never came") == "never came"


def test_they_speak_plainly() -> None:
    """Of what a reader must not meet in a first line: the names of signals as numbers, empty or double words, unfilled slots."""
    for line in first_lines().splitlines():
        said = re.sub("`[^`]*`", "``", line)  # but for lines of the program
        assert not re.search(r"\bsignal \d|\{\w+\}|  \S+  |\b(\w+) \1\b(?! of)|\(\)\(|None\b", said.strip()), line
