"""What an agent may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang import mcp_server as confinement
from unhang.mcp_server import OutOfRoot, confined


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("x")
    root = tmp_path / "root"
    (root / "runs" / "one").mkdir(parents=True)
    (root / "runs" / "one" / "log").write_text("x")
    return root


@pytest.mark.parametrize("text", ["runs", "runs/one/log", ".", "./runs", "runs//one"])
def test_what_is_below_the_root_may_be_named(root: Path, text: str) -> None:
    assert confined(text, root).exists()


def test_the_whole_path_may_be_given(root: Path) -> None:
    assert confined(str(root / "runs"), root) == root / "runs"


@pytest.mark.parametrize(
    "text",
    ["..", "../secret", "runs/../../secret", "runs/..", "/etc/hostname", "", "a\0b", "s3://bucket/dumps", "file:///etc/hostname", "gone", "-", "runs/*"],
)  # fmt: skip
def test_all_else_is_refused(root: Path, text: str) -> None:
    with pytest.raises(OutOfRoot):
        confined(text, root)


@pytest.mark.parametrize("target", ["../secret", "/etc", "../../"])
def test_a_link_that_leads_out_is_refused_wherever_it_is(root: Path, target: str) -> None:
    (root / "runs" / "one" / "link").symlink_to(target if target.startswith("/") else f"../../{target}")
    for text in ("runs/one/link", "runs/one", "runs", "."):
        with pytest.raises(OutOfRoot, match="leads out of"):
            confined(text, root)


def test_a_link_within_the_root_may_be_used(root: Path) -> None:
    (root / "latest").symlink_to("runs/one")
    assert (confined("latest", root) / "log").exists()
    assert confined(".", root)


def test_a_folder_with_very_many_files_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "_MOST_FILES", 0)
    with pytest.raises(OutOfRoot, match="more than 0 files; name a part of it"):
        confined("runs", root)
