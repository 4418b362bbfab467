from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.show.cases import SAMPLES, Sample, clean, hang, unknown
from tests.unit.show.odd_cases import hostile, large
from unhang.model import EvidenceLine, Outcome
from unhang.show.text import render_text

SNAPSHOTS = Path(__file__).parent / "snapshots"


def text_of(sample: Sample, color: bool = False, width: int = 100) -> str:
    return render_text(sample.diagnosis, sample.case, sample.waits, color=color, width=width)


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_exactly(name: str) -> None:
    file = SNAPSHOTS / f"{name}.txt"
    text = text_of(SAMPLES[name]())
    if os.environ.get("UNHANG_UPDATE_SNAPSHOTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_the_first_line_is_the_answer() -> None:
    first = text_of(hang()).splitlines()[0]
    assert first.startswith("HANG  rank 0 called barrier as #161")
    assert "train.py:41" in first
    assert first.endswith("[code-divergence, 97%]")


def test_a_place_that_the_title_lacks_is_added() -> None:
    sample = hang()
    bare = replace(sample.diagnosis.findings[0], title="rank 0 is elsewhere")
    diagnosis = replace(sample.diagnosis, findings=(bare,))
    assert "rank 0 is elsewhere, at train.py:41 in save_checkpoint()" in text_of(replace(sample, diagnosis=diagnosis))


def test_clean_is_one_line() -> None:
    assert text_of(clean()).count("\n") == 1


def test_clean_with_a_finding_is_reported() -> None:
    sample = hang()
    diagnosis = replace(sample.diagnosis, outcome=Outcome.CLEAN)
    assert "WHAT TO DO" in text_of(replace(sample, diagnosis=diagnosis))


def test_color_adds_nothing_but_sgr_sequences() -> None:
    colored = text_of(hang(), color=True)
    assert "\x1b[1;31mHANG\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == text_of(hang())


def test_hostile_text_steers_nothing() -> None:
    for color in (False, True):
        text = re.sub(r"\x1b\[[0-9;]*m", "", text_of(hostile(), color=color)) if color else text_of(hostile())
        odd = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"}
        assert odd == set()
        assert "[bold red]x[/]" in text
        assert "\\x1b[31mred" in text


def test_prose_is_wrapped_at_the_width() -> None:
    why = text_of(hang(), width=60).split("WHY\n")[1].split("\n\n")[0]
    assert max(len(line) for line in why.splitlines()) <= 60


def test_a_large_job_stays_short() -> None:
    sample = large(world=4096, calls=4)
    many = tuple(EvidenceLine(f"rank {r}", "waits") for r in range(5000))
    finding = replace(sample.diagnosis.findings[0], evidence=many)
    text = text_of(replace(sample, diagnosis=replace(sample.diagnosis, findings=(finding,))))
    assert text.count("\n") < 80
    assert "ranks 0-2710, 2712-4095  wait for rank 2711" in text
    assert "... and 4988 more lines" in text


def test_unknown_names_what_would_decide_it() -> None:
    text = text_of(unknown())
    assert "- needs the kernel log: xid, ib-link could not judge" in text
    assert "ranks 0-3  all_reduce #21 of default_pg  scheduled" in text
    assert "2 of 6 files were not of a known kind" in text


def test_a_hang_without_finding_says_who_waits() -> None:
    sample = hang()
    text = text_of(replace(sample, diagnosis=replace(sample.diagnosis, findings=())))
    assert text.startswith("HANG  ranks 0-3 make no progress; the evidence does not suffice to name a cause\n")
    assert "WHO WAITED FOR WHOM" in text
