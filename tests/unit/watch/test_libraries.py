"""Whether the folders of Python's modules change while a job runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from unhang.watch.beside import EACH_S, Libraries


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a rank, and the one from which it loads modules."""
    rank, library = tmp_path / "r0-1", tmp_path / "library"
    rank.mkdir()
    (library / "torch").mkdir(parents=True)
    (library / "monai.py").write_text("")
    (rank / "identity.json").write_text(json.dumps({"libraries": [str(library / "torch"), "/not/there"]}))
    return rank, library


def _later(path: Path) -> None:
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 10**9))  # two changes within one tick of the clock


def test_what_goes_and_comes_is_told_once_and_kept(folders: tuple[Path, Path]) -> None:
    rank, library = folders
    seen = Libraries()
    assert seen.look([rank], 0.0, 0.0) == []
    (library / "monai.py").unlink()
    (library / "numpy").mkdir()
    _later(library)
    assert seen.look([rank], 1.0, 1.0) == []  # not yet
    assert seen.look([rank], EACH_S, 5.0) == [str(library)]
    assert seen.look([rank], 2 * EACH_S, 10.0) == []
    assert seen.changed == {str(library): (5.0, ["monai.py"], ["numpy"])}


def test_what_python_and_pip_make_on_their_own_and_what_is_put_back_is_no_change(folders: tuple[Path, Path]) -> None:
    rank, library = folders
    seen = Libraries()
    seen.look([rank], 0.0, 0.0)
    (library / "__pycache__").mkdir()
    (library / "~orch").mkdir()
    (library / "pandas").mkdir()  # what is added breaks nothing that runs
    _later(library)
    assert seen.look([rank], EACH_S, 5.0) == []
    (library / "monai.py").rename(library / "away.py")
    _later(library)
    assert seen.look([rank], 2 * EACH_S, 10.0) == [str(library)]
    (library / "away.py").rename(library / "monai.py")
    _later(library)
    assert seen.look([rank], 3 * EACH_S, 15.0) == []
    assert seen.changed == {}
