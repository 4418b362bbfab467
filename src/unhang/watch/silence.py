"""No rank has announced itself: the launcher waits for other nodes, or the ranks run without the recorder (PYTHONPATH replaced).

Such ranks are looked at from outside, as `unhang attach` does: rarely, since a look stops them for some ten milliseconds, and
each look that finds them moving doubles the time to the next. A suspicion needs the same standstill in several of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from unhang.watch.options import RunOptions
from unhang.watch.process import WorkProbe, children_of
from unhang.watch.ranks import write_whole
from unhang.watch.suspicion import START_UP_STALL_S
from unhang.watch.unregistered import disown, rendezvous_stacks, unrecorded

_FIRST_S, _EVERY_S, _MOST_S = 20.0, 15.0, 240.0
_AGAIN_S = 5.0
_STANDS_S = 30.0  # of ranks that were seen to move before; else START_UP_STALL_S


class Said(NamedTuple):
    """What the watcher is to say. `kind`: note, suspected, stalled (it still stands) or moves. `onset_ns`: since when it stands."""

    kind: str
    text: str = ""
    waiting: tuple[int, ...] = ()
    onset_ns: int = 0


class Silence:
    """What becomes of a job of which no rank has announced itself. Times named `now` are CLOCK_MONOTONIC seconds."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int) -> None:
        self._options, self._run_dir, self._root = options, run_dir, root_pid
        self._launcher = WorkProbe()
        self._began = self._look_at = time.monotonic()
        self._pause_s, self._is_over, self._has_moved, self.is_looking = _EVERY_S, False, False, False
        self._looked_at = set[str]()
        self._standing: tuple[str, float, int] | None = None  # where, and since when: monotonic, wall clock

    def is_kept(self, names: Iterable[str]) -> bool:
        """Whether no rank has announced itself; `names`: the folders of ranks. Those that a look has made do not count."""
        for name in names:
            if name not in self._looked_at:
                if not (self._run_dir / "ranks" / name / "look.json").exists():
                    return False
                self._looked_at.add(name)
        return True

    def end(self, has_verdict: bool) -> None:
        """What was seen of ranks that nobody suspects is of another moment than their end."""
        if not has_verdict:
            for name in self._looked_at:
                disown(self._run_dir / "ranks" / name)

    def turn(self, now: float, stall_after_s: float) -> Said | None:
        """What there is to say. Blocks: some seconds where a look is due."""
        if now < self._look_at or self._is_over:
            return None
        if self.is_looking:
            return self._look(stall_after_s)
        lasted_s, has_lasted = now - self._began, now - self._began >= stall_after_s
        if lasted_s < _FIRST_S and not has_lasted:
            return None
        self._look_at = now + min(_AGAIN_S, stall_after_s)
        starts = lasted_s < START_UP_STALL_S
        if ranks := unrecorded(self._root, only_launched=not has_lasted, only_misled=starts):
            return self._begin(now, ranks)
        return self._of_launcher(lasted_s, stall_after_s) if has_lasted else None

    def _begin(self, now: float, ranks: list[int]) -> Said:
        self.is_looking, self._look_at = self._options.look_outside is not None, now
        self._is_over = not self.is_looking
        how = "they are looked at from outside, and less is seen" if self.is_looking else "nothing of them is seen"
        return Said("note", f"{_ranks(ranks)} without unhang's recorder (is PYTHONPATH replaced?): {how}")

    def _look(self, stall_after_s: float) -> Said | None:
        assert self._options.look_outside is not None
        began, began_ns = time.monotonic(), time.time_ns()
        seen = self._options.look_outside(self._root, self._run_dir)
        now = time.monotonic()
        if seen is None or seen.word != "stalled":
            moves = seen is not None and seen.word == "moves"
            self._has_moved = self._has_moved or moves
            self._pause_s = min(2 * self._pause_s, _MOST_S) if moves else _EVERY_S
            self._standing, self._look_at = None, now + self._pause_s
            return Said("moves") if moves else None
        if self._standing is None or self._standing[0] != seen.text:
            self._standing = (seen.text, began, began_ns)
        self._pause_s, self._look_at = _EVERY_S, now + _EVERY_S
        _, since, since_ns = self._standing
        asked = self._options.stall_after_s
        least_s = asked if asked is not None else _STANDS_S if self._has_moved else START_UP_STALL_S
        if since == began or now - since < least_s:
            return None
        return Said("stalled", seen.text, seen.waiting, since_ns)

    def _of_launcher(self, quiet: float, limit_s: float) -> Said | None:
        """The launcher may wait for other nodes. A busy one passes through its rendezvous, and its ranks import."""
        pids = [self._root, *children_of(self._root)]
        if quiet < limit_s + START_UP_STALL_S and self._launcher.is_at_work(pids):
            return None
        self._is_over = True
        if not (threads := rendezvous_stacks(pids)):
            return None
        write_whole(self._run_dir / "launcher.json", json.dumps(threads).encode())
        return Said("stalled", "the launcher waits in its rendezvous", (), time.time_ns() - int(quiet * 1e9))


def _ranks(ranks: list[int]) -> str:
    return f"{len(ranks)} rank{'s run' if len(ranks) > 1 else ' runs'}"
