"""Whether the folders from which a job's Python loads its modules change while it runs: what starts later then finds others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

EACH_S = 5.0
_MOST_FOLDERS, _MOST_NAMES = 8, 50


class Libraries:
    """The names in each folder, as they were when a rank was first seen, and what has become of them."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._before: dict[str, tuple[int, frozenset[str]]] = {}
        self._next_at = 0.0
        self.changed: dict[str, tuple[float, list[str], list[str]]] = {}  # folder -> seconds from the start, gone, new

    def look(self, ranks: Iterable[Path], now: float, ran_s: float) -> list[str]:
        """Looks at the folders of these ranks (their recorder's folders), every five seconds. Returns the folders that are seen to change for the first time.

        Blocks: for a stat of each folder; for its names where it has changed.
        """
        for folder in ranks:
            if folder.name not in self._known:
                self._known.add(folder.name)
                self._begin(folder)
        if now < self._next_at:
            return []
        self._next_at = now + EACH_S
        return [path for path in self._before if self._has_changed(path, ran_s)]

    def _begin(self, folder: Path) -> None:
        with suppress(OSError, ValueError, TypeError):
            for path in json.loads((folder / "identity.json").read_bytes()).get("libraries", ()):
                given = os.path.dirname(path) if path.endswith("/torch") else path
                if (
                    len(self._before) < _MOST_FOLDERS
                    and given not in self._before
                    and (names := _names(given)) is not None
                ):
                    self._before[given] = (os.stat(given).st_mtime_ns, names)

    def _has_changed(self, path: str, ran_s: float) -> bool:
        time_ns, before = self._before[path]
        with suppress(OSError):
            if os.stat(path).st_mtime_ns == time_ns:
                return False
        now = _names(path) or frozenset()
        gone, new = sorted(before - now)[:_MOST_NAMES], sorted(now - before)[:_MOST_NAMES]
        is_first = bool(gone) and path not in self.changed
        if gone:  # what is new alone breaks nothing that runs
            self.changed[path] = (self.changed[path][0] if path in self.changed else ran_s, gone, new)
        else:
            self.changed.pop(path, None)
        return is_first


def _names(path: str) -> frozenset[str] | None:
    """What lies in a folder, but for what Python and pip make on their own."""
    with suppress(OSError):
        return frozenset(n for n in os.listdir(path) if n != "__pycache__" and not n.startswith(("~", ".")))
    return None
