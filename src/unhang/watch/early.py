"""What is told while the job still runs: rules on the program and its set-up, as soon as the recorder has noted something new."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from unhang.errors import UnhangError
from unhang.read.bundle import read_bundle

FACTS = "facts.jsonl"
_TOLD_BY_ITSELF = "library-changed"
_EACH_S, _MOST_LOOKS, _MOST_SAID = 3.0, 20, 8


class Early:
    """Looks at the facts of the ranks. `said`: what was told before is not told again."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._sizes: dict[Path, int] = {}
        self._looks, self._next_at = 0, 0.0
        self.said: set[str] = set()

    def look(self, ranks: Iterable[Path], now: float) -> list[str]:
        """What is new to say, given the folders of the ranks. Blocks: for a stat of each, and for the judgement where a file has grown."""
        if now < self._next_at or self._looks >= _MOST_LOOKS or len(self.said) >= _MOST_SAID:
            return []
        self._next_at = now + _EACH_S
        sizes = {}
        for folder in ranks:
            with suppress(OSError):
                sizes[folder] = (folder / FACTS).stat().st_size
        if sizes == self._sizes:
            return []
        self._sizes = sizes
        self._looks += 1
        return self._judged()

    def _judged(self) -> list[str]:
        from unhang.rules.base import RULES
        from unhang.rules.job import training  # most jobs give no reason to load it
        from unhang.rules.registry import judge

        with suppress(UnhangError):
            rules = [r for r in RULES.values() if r.find.__module__ == training.__name__ and r.id != _TOLD_BY_ITSELF]
            found = judge(read_bundle(self._run_dir, trusted=True), rules)
            told = (f"{f.title}{f', {f.location}' if f.location else ''}" for f in found.findings)
            texts = dict.fromkeys([*told, *(f.remark for f in found.remarks)])
            new = [text for text in texts if text not in self.said]
            self.said.update(new)
            return new
        return []
