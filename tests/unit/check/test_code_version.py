"""The version of training code: by git, by hand where there is no git, by content where there is no repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slowness import slowness
from unhang.check import versions as module
from unhang.check.versions import NoVersion, code_version, content, head

A, B = "a" * 40, "b" * 40
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=20 * slowness(), env=environ
    ).stdout.strip()


@needs_git
def test_revision_and_changes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    clean = code_version(tmp_path, is_named=False)
    assert clean == {"how": "git", "revision": git(tmp_path, "rev-parse", "HEAD"), "changes": ""}
    index = (tmp_path / ".git" / "index").read_bytes()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "new.py").write_text("y = 1\n")
    (tmp_path / "notes.txt").write_text("not code")
    first = code_version(tmp_path / "train.py", is_named=True)["changes"]
    (tmp_path / "sub" / "new.py").write_text("y = 2\n")
    second = code_version(tmp_path, is_named=True)["changes"]
    (tmp_path / "train.py").write_text("x = 2\n")
    third = code_version(tmp_path / "sub", is_named=True)["changes"]
    assert len({"", None, first, second, third}) == 5
    assert (tmp_path / ".git" / "index").read_bytes() == index, "nothing is written"
    git(tmp_path, "pack-refs", "--all")
    assert code_version(tmp_path, is_named=True)["revision"] == clean["revision"]
    git(tmp_path, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    assert code_version(tmp_path / "tree", is_named=True) == clean


def test_without_git_the_revision_is_read_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text(f"{A}\n")
    assert code_version(tmp_path, is_named=False) == {"how": "git", "revision": A, "changes": None}
    (tmp_path / ".git" / "HEAD").write_text(f"{B}\n")
    assert head(tmp_path) == B
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    assert head(tmp_path) is None


def test_without_a_repository_the_content_counts_where_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    with pytest.raises(NoVersion, match="in no git repository"):
        code_version(tmp_path, is_named=False)
    first = code_version(tmp_path, is_named=True)
    assert first["how"] == "content"
    (tmp_path / "b.txt").write_text("data")
    assert code_version(tmp_path, is_named=True) == first
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert code_version(tmp_path, is_named=True) != first
    assert content(tmp_path / "c.py") != content(tmp_path / "b.txt")


def test_what_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(NoVersion, match="does not exist"):
        code_version(tmp_path / "absent", is_named=True)
    with pytest.raises(NoVersion, match="no Python file"):
        code_version(tmp_path, is_named=True)
