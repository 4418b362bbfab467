"""Writes CHANGELOG.md from `changes/`: one section for the version of the package, its lines by what they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unhang import __version__

ROOT = Path(__file__).parents[1]
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed"}


def changelog(fragments: Mapping[str, str]) -> str:
    """The page from file name -> text.

    Raises:
        ValueError: a file is not named <slug>.<added|changed|fixed>.md, or is empty.
    """
    lines = ["# Changelog", "", "Written from `changes/` by `make changelog`.", "", f"## {__version__}", ""]
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, text in sorted(fragments.items()):
        kind = name.removesuffix(".md").rpartition(".")[2]
        if kind not in KINDS or not text.strip():
            raise ValueError(f"changes/{name}: a change is a text in <slug>.<{'|'.join(KINDS)}>.md")
        found[kind].append(f"- {' '.join(text.split()).removeprefix('- ')}")
    for kind, heading in KINDS.items():
        if found[kind]:
            lines += [f"### {heading}", "", *found[kind], ""]
    return "\n".join(lines)


def fragments() -> dict[str, str]:
    """What lies in `changes/`."""
    return {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "changes").glob("*.md")}


if __name__ == "__main__":
    (ROOT / "CHANGELOG.md").write_text(changelog(fragments()), encoding="utf-8")
