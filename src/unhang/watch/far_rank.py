"""A rank of another node as the hub knows it, and the beat that it shares with the others of its node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from unhang.watch.messages import RankState
from unhang.watch.ranks import WatchedRank

_MOVED_S = 0.001


class _NoProbe:
    """In the place of the probe of a process that runs elsewhere: its own watcher has one."""

    def is_stopped(self) -> bool:
        return False

    def read(self) -> dict[str, Any]:
        return {}


class Beat:
    """What ranks of one node do that move as one: of very many, none is gone through that did what the others did.

    Times as a rank has them. `apart`: the ranks that were heard one by one since; `joined`: those that came to the others after the last poll.
    """

    def __init__(self) -> None:
        self.apart: list[FarRank] = []
        self.joined: list[FarRank] = []
        self.moved_there, self.moved_at, self.moved_ns = float("-inf"), float("-inf"), 0
        self.moves, self.polled, self.ended_quiet_s = 0, 0, 0.0
        self.grown_s, self._said_s, self._base_s = 0.0, 0.0, 0.0

    @property
    def said_s(self) -> float:
        """How long they have been quiet, as was last said."""
        return self._said_s + self.grown_s - self._base_s

    def hear(self, quiet_s: float, moved_there: float, moved_at: float, moved_ns: int, have_followers: bool) -> None:
        """Takes what was said of all ranks at once."""
        is_new = not have_followers or moved_there > self.moved_there + _MOVED_S
        if is_new:
            if have_followers:
                self.ended_quiet_s, self.moves = max(self.ended_quiet_s, self.said_s), self.moves + 1
            self.moved_there, self.moved_at, self.moved_ns = moved_there, moved_at, moved_ns
        stay = []
        for rank in self.apart:
            if rank.move(moved_there, moved_at, moved_ns) and is_new and rank.is_alive:
                rank.follow()
                self.joined.append(rank)
            else:
                rank.say(quiet_s)
                stay.append(rank)
        self.apart = stay
        self._said_s, self._base_s = quiet_s, self.grown_s

    def poll(self) -> float | None:
        """The length of the longest quiet that was heard to have ended on any of them, if one did."""
        ended = [q for r in (*self.apart, *self.joined) if r.is_alive and (q := r.poll()) is not None]
        self.joined.clear()
        if self.polled != self.moves:
            ended.append(self.ended_quiet_s)
            self.polled, self.ended_quiet_s = self.moves, 0.0
        return max(ended, default=None)


class FarRank(WatchedRank):
    """A training process of another node, by what its watcher says. A quiet is as long as was last said.

    It follows the beat of its node as long as what is said of it is said of all.
    """

    def __init__(self, folder: Path, state: RankState, at: float, there: float, beat: Beat) -> None:
        self.folder = folder
        rank, _, pid = folder.name[1:].rpartition("-")
        self.rank, self.pid, self.pidfd = int(rank), int(pid), None
        self.probe = _NoProbe()  # type: ignore[assignment]
        self.is_alive, self.is_earlier, self.is_unheard = True, False, False
        self.died_at, self.seen_end = float("-inf"), None
        self._beat, self._follows = beat, False
        beat.apart.append(self)
        self._state, self._moves, self._has_moved, self._ended_quiet_s = state, 1, True, 0.0
        self._moved_there, self._moved_at, self._moved_ns = there - state.quiet_s, at - state.quiet_s, time.time_ns()
        self.say(state.quiet_s)

    def hear(self, state: RankState, at: float, there: float) -> None:
        """Takes what its watcher said of it alone: it came at `at`, and was so `there`, on the other node's own clock."""
        quiet_s = state.quiet_s
        self._leave()
        self.move(there - quiet_s, at - quiet_s, time.time_ns() - int(quiet_s * 1e9))
        self._state = state
        self.say(quiet_s)

    def say(self, quiet_s: float) -> None:
        """Takes how long it has been quiet, until the node says more."""
        self._said_s, self._base_s = quiet_s, self._beat.grown_s

    @property
    def said_s(self) -> float:
        """How long it has been quiet, as was last said."""
        return self._beat.said_s if self._follows else self._said_s + self._beat.grown_s - self._base_s

    @property
    def moved_at(self) -> float:
        """When it moved last, on our clock."""
        return self._beat.moved_at if self._follows else self._moved_at

    @moved_at.setter
    def moved_at(self, at: float) -> None:
        if at != self.moved_at:
            self._leave()
            self._moved_at = at

    @property
    def moved_ns(self) -> int:  # type: ignore[override]
        """The same by the clock of the day."""
        return self._beat.moved_ns if self._follows else self._moved_ns

    def move(self, moved_there: float, moved_at: float, moved_ns: int) -> bool:
        """Takes when it moved last: on the other node's clock, on ours, and on that of the day. Returns whether that is new."""
        is_new = moved_there > self._moved_there + _MOVED_S
        if is_new:
            self._ended_quiet_s = max(self._ended_quiet_s, self.said_s)
            self._moves, self._has_moved = self._moves + 1, True
            self._moved_there, self._moved_at, self._moved_ns = moved_there, moved_at, moved_ns
        return is_new

    def follow(self) -> None:
        """From now on it does what the others do."""
        self._follows, self._moves = True, self._moves - self._beat.moves

    def _leave(self) -> None:
        if not self._follows:
            return
        beat = self._beat
        self._said_s, self._base_s = beat.said_s, beat.grown_s
        self._moved_there, self._moved_at, self._moved_ns = beat.moved_there, beat.moved_at, beat.moved_ns
        self._follows, self._moves = False, self._moves + beat.moves
        if beat.polled != beat.moves:
            self._has_moved, self._ended_quiet_s = True, max(self._ended_quiet_s, beat.ended_quiet_s)
        beat.apart.append(self)

    def poll(self, now: float = 0.0) -> float | None:
        """The length of the longest quiet that was heard to have ended on it alone, if one did."""
        if not self._has_moved:
            return None
        quiet_s, self._has_moved, self._ended_quiet_s = self._ended_quiet_s, False, 0.0
        return quiet_s

    def moves(self) -> bool:
        """Whether it was heard to have moved since it was last polled."""
        return self._has_moved or (self._follows and self._beat.polled != self._beat.moves)

    @property
    def movement(self) -> bytes:
        """Equal values mean that nothing was heard to move."""
        return str(self._moves + (self._beat.moves if self._follows else 0)).encode()

    def quiet_s(self, now: float) -> float:
        """How long it did not move, at least."""
        return min(self.said_s, now - self.moved_at)

    def has_failed(self) -> bool:
        """Whether it raised, or left with an error code."""
        return self._state.has_failed

    def has_stepped(self) -> bool:
        """Whether it is past its start."""
        return self._state.has_stepped

    def is_aborting(self) -> bool:
        """Its own watcher looks after that."""
        return False

    def note_death(self) -> tuple[int, int | None]:
        """Notes that it ended, as it was heard."""
        self._leave()
        dead_s = max(0.0, self._state.dead_s)
        self.is_alive, self.died_at = False, time.monotonic() - dead_s
        self.seen_end = time.time_ns() - int(dead_s * 1e9), self._state.exit_code
        return self.seen_end

    def write_state(self, fields: dict[str, Any]) -> None:
        """Its own watcher writes it."""

    keep_state = write_state
