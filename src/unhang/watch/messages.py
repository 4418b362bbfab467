"""What the watchers of one job say to each other, and what the hub knows by it of a rank of another node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from unhang.analyze.alike import Told
from unhang.watch.exchange import VERSION
from unhang.watch.joining import Address
from unhang.watch.ranks import WatchedRank

LEAST_PAUSE_S, USUAL_PAUSE_S, MESSAGES_PER_S, MOST_MESSAGES_PER_S = 0.25, 1.0, 1000.0, 4000.0


def pause_of(nodes: int, direct: int) -> float:
    """How often each of so many nodes speaks: four times a second, of a thousand once; `direct` ones as often as the hub can hear them."""
    return max(LEAST_PAUSE_S, min(USUAL_PAUSE_S, nodes / MESSAGES_PER_S), direct / MOST_MESSAGES_PER_S)


class RankState(msgspec.Struct, array_like=True, gc=False):
    """One process, as its own node sees it. `quiet_s`, `dead_s`: how long ago it moved, or ended; -1: it lives."""

    folder: str
    quiet_s: float
    dead_s: float = -1.0
    exit_code: int | None = None
    has_stepped: bool = False
    has_failed: bool = False


class State(msgspec.Struct, array_like=True):
    """What a node says of itself. `looked`, `still`, `secured`, `seen`: the numbers of the hub's orders that are done.

    They count for the hub with this nonce alone. `is_still`: whether nothing had moved at `still` since `looked`. `is_over`: its job has ended.
    `world`: ranks of the job, as its own ranks were told. `told`: in a job of many ranks, what `looked` showed; `sent`: files that were asked for.
    `at`: the node's own CLOCK_MONOTONIC when the quiets of `ranks` were so; how long a message took says nothing of a rank.
    """

    hub: str = ""
    ranks: list[RankState] = []
    looked: int = 0
    still: int = 0
    is_still: bool = False
    secured: int = 0
    seen: int = 0
    is_over: bool = False
    world: int = 0
    told: Told | None = None
    sent: int = 0
    at: float = 0.0


class Row(msgspec.Struct, array_like=True, gc=False):
    """All of a node that is new: its ranks' quiets have grown since, until `at` on its clock; or all are now as short as `quiet_s`, or longer.

    `looked`, `told`, `still`, `is_still`: as in its `State`, where it has looked, or been asked whether its ranks still stand.
    """

    at: float
    quiet_s: float = -1.0
    looked: int = 0
    told: Told | None = None
    still: int = 0
    is_still: bool = False


class Push(msgspec.Struct, array_like=True):
    """A message to the hub. `files`: those that changed, by path below the run directory; `gone`: those that are no more.

    `offset_ns`: what to add to this node's clock for the hub's, found in a round trip of `trip_ns`; 0 and 0 before the first.
    `group`, `rows`, `left`: what nodes say that speak through this one, and which of them have hung up.
    """

    version: int
    name: str
    host: str
    port: int
    state: State
    files: dict[str, bytes] = {}
    gone: list[str] = []
    offset_ns: int = 0
    trip_ns: int = 0
    group: dict[str, Push] = {}
    rows: dict[str, Row] = {}
    left: list[str] = []


@dataclass
class Said:
    """A message as it came, or the end of a connection (`push` None). `at`: CLOCK_MONOTONIC seconds.

    `rows`: what others say through this node, where it is nothing else. `is_direct`: by its own connection.
    """

    node: str
    address: Address
    push: Push | None
    at: float
    rows: Mapping[str, Row] = field(default_factory=dict)
    is_direct: bool = True


CRASH = "crash"  # the kind of a verdict on a job that failed, beside those on hangs
LEFT = "left"  # what a node says of its own ranks that failed while the hub, which will report, goes on


class JointVerdict(msgspec.Struct, array_like=True):
    """What the hub found, for every screen. `is_end`: the job is to be ended now."""

    number: int
    kind: str
    line: str
    report: str
    waiting: list[int]
    onset_ns: int
    is_withdrawn: bool = False
    will_end: bool = False
    is_end: bool = False


class Orders(msgspec.Struct, array_like=True):
    """The hub's answer: numbers of what is to be done, how often to speak, who follows it, where its report will be.

    `send`: in a job of many ranks, for the few nodes that are to send their files; `only`: all ranks of which files are sent.
    `via`: the node through which to speak from now on; `group`, `group_send`: who of those behind this node is to send its files.
    """

    version: int = VERSION
    hub: str = ""
    now_ns: int = 0
    pause_s: float = LEAST_PAUSE_S
    look: int = 0
    confirm: int = 0
    secure: int = 0
    verdict: JointVerdict | None = None
    successors: list[tuple[str, str, int]] = []
    needs_all: bool = False
    report: str = ""
    send: int = 0
    only: tuple[int, ...] = ()
    via: tuple[str, int] | None = None
    group: tuple[str, ...] = ()
    group_send: int = 0


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
