"""The pytest plugin: distributed tests that hang fail within seconds, and say why. pytest loads `hooks`, which loads the rest when it is used."""

from __future__ import annotations

from pathlib import Path


class RanksFailed(Exception):
    """The ranks did not come to a good end; the text says why.

    `rank`: the one that raised first, `traceback`: what it raised; None and "" where none has. `report`: the folder of the report.
    """

    def __init__(self, text: str, rank: int | None = None, traceback: str = "", report: Path | None = None) -> None:
        super().__init__(text)
        self.rank, self.traceback, self.report = rank, traceback, report
