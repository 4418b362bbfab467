"""Beside a diff stands no fix that says the same in words: over all that was recorded, and over the cards."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.ranks.recordings import CASES, PLACE, REPOSITORY, unpacked, verdict
from unhang import fix as making
from unhang.fix import mend, with_diff
from unhang.fix.program import NoDiff
from unhang.model import Diagnosis
from unhang.model.findings import DIFFS
from unhang.rules.registry import all_rules

FILE = Path(__file__).with_name("fixes_beside_diffs.txt")


def here(name: str) -> Path:
    path = Path(name)
    return REPOSITORY / path.relative_to(PLACE) if path.is_relative_to(PLACE) else path


@pytest.fixture(scope="module")
def with_diffs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Diagnosis, Diagnosis]]:
    """The verdict of each recording whose first finding a diff mends, without and with the diff."""
    folder, found = unpacked(tmp_path_factory.getbasetemp()), {}
    for name in sorted(CASES):
        diagnosis = verdict(folder / name).diagnosis
        try:
            mend(diagnosis.findings[0], diagnosis.job.backend, here)
        except (NoDiff, IndexError):
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(making, "mend", partial(mend, find_file=here))
            patch.setattr(making, "_is_newer", lambda *_: False)
            found[name] = diagnosis, with_diff(diagnosis)
    return found


def test_what_stands_beside_a_diff_is_exactly(with_diffs: dict[str, tuple[Diagnosis, Diagnosis]]) -> None:
    """To be read: is one of them the diff in words? Then it has the same `does`. UNHANG_UPDATE_SNAPSHOTS=1 writes it anew."""
    lines = {}
    for _, diagnosis in with_diffs.values():
        first = diagnosis.findings[0]
        diff, *others = first.fixes
        shown = "".join(f"    {f.title}\n" for f in others)
        lines[f"{first.rule}: {diff.does}\n{shown}"] = None
    text = "".join(sorted(lines))
    if os.environ.get("UNHANG_UPDATE_SNAPSHOTS"):
        FILE.write_text(text, encoding="utf-8")
    assert text == FILE.read_text(encoding="utf-8")


def test_a_diff_is_first_and_has_no_twin(with_diffs: dict[str, tuple[Diagnosis, Diagnosis]]) -> None:
    assert len(with_diffs) > 25
    dropped: set[str] = set()
    for name, (before, diagnosis) in with_diffs.items():
        diff, *others = diagnosis.findings[0].fixes
        assert diff.patch.startswith("--- "), name
        assert diff.does in DIFFS, name
        assert [f.title for f in others if f.patch or f.does == diff.does] == [], name
        gone = [f for f in before.findings[0].fixes if f not in others]
        assert {f.does for f in gone} <= {diff.does}, name
        dropped |= {f.does for f in gone}
    assert {"raise again", "every rank calls", "decide together", "find unused", "wait for writer"} <= dropped


def test_cards_name_diffs_that_there_are() -> None:
    named = {fix.does for rule in all_rules() for fix in rule.card.fixes.values()}
    assert named - {""} <= set(DIFFS)
    assert {"raise again", "every rank calls", "decide together", "find unused", "wait for writer"} <= named
