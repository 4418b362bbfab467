"""The stories in `examples/stories` as jobs, with the truth about them from their table."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tests.ranks.faults import Case

FOLDER = Path(__file__).parents[2] / "examples" / "stories"
TRUTH = tomllib.loads((FOLDER / "stories.toml").read_text())
STORIES = {story["name"]: story for story in TRUTH["story"]}


def program(story: dict[str, Any]) -> Path:
    return FOLDER / story["name"] / story["file"]


def marked_lines(story: dict[str, Any], marker: str) -> list[str]:
    return [line.strip() for line in program(story).read_text().splitlines() if line.endswith(marker)]


def case_of(story: dict[str, Any], *arguments: str, **more: Any) -> Case:
    return Case(story["name"], str(program(story)), arguments, **more)


def broken(story: dict[str, Any]) -> Case:
    """The job as it was when it hung."""
    return case_of(
        story,
        "--broken",
        outcome=story["outcome"],
        cause=story["cause"],
        culprits=tuple(story["culprits"]),
        lines=tuple(marked_lines(story, story["marker"])),
        stall_after_s=4,
    )


BROKEN = [broken(story) for story in STORIES.values()]
