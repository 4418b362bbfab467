"""What one rank announces of its end to the others, and what it learns of theirs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards import ending, words
from unhang.inside.guards.board import (
    ANSWER_S,
    FAILED,
    Board,
    Presence,
    Roll,
    as_error,
    call_roll,
    collectives_made,
    one_line,
    places,
    waits_in_vain,
)  # fmt: skip
from unhang.inside.guards.ending import Neighbours, Watcher
from unhang.inside.guards.job import END_LIMIT_S, Job
from unhang.inside.guards.words import in_words, log, shortened, traceback_of
from unhang.inside.guards.worker import limited, polled

# A rank whose main thread does not come back by itself after a peer failed is ended this much later.
GRACE_S = 3.0
_OWN_GRACE_S = 7.0
# After a stopped rank was continued, the calls of the others come to their end, and the training would go on.
_RESUMED_GRACE_S = 1.0
DESTROY_LIMIT_S = 10.0
# An error that a peer's end has caused is announced by that peer within this time, or by nobody.
_ECHO_WAIT_S = 0.6
_SETTLE_LIMIT_S = 6.0
_SEEN_LIMIT_S = 2.0
# So long a rank that leaves the training takes at most until it is over.
_OWN_END_S = _SETTLE_LIMIT_S + END_LIMIT_S + DESTROY_LIMIT_S + _SEEN_LIMIT_S
_FIRST_GOES_S = 0.5
_HEAD_START_S = 0.2
_LEAVE_TOGETHER_S = 1.0
_CALL_EVERY_S = 3.0


class Peers:
    """The other ranks during one use of `process_group`. Without a board it learns and announces nothing."""

    def __init__(self, job: Job, grace_s: float = GRACE_S) -> None:
        self._job, self._board, self._grace_s = job, job.board, grace_s
        self._watcher: Watcher | None = None
        self._neighbours: Neighbours | None = None
        self._failure: dict[str, Any] | None = None
        self._is_leaving, self._is_over = threading.Event(), threading.Event()
        self.ends_well = False
        self._presence = Presence(job.board, threading.get_ident())

    def watch(self) -> None:
        """Begins to listen. Never raises."""
        if self._board is None:
            return
        try:
            self._watcher = Watcher(self._board, self._peer_failed, self._store_lost, self._answer)
            self._job.is_answered = True
        except RuntimeError as error:
            log("unhang", f"failures of other ranks are not heard: {error}")

    def watch_neighbours(self) -> None:
        """Begins to look at the ranks beside this one, which all end with `done` or `failed`. Never raises."""
        if self._board is not None:
            with suppress(RuntimeError):
                self._neighbours = Neighbours(self._board, self._neighbour_failed)

    # What is heard, in the watcher's thread.

    def _answer(self) -> None:
        """Answers what the others ask: where this rank is, and how it stands in its sections."""
        self._presence.answer()
        with suppress(Exception):
            # Only here: as long as nobody asks, a training without sections does not pay for them.
            from unhang.inside.guards.section import answer

            answer()

    def meet_neighbours(self) -> None:
        """All ranks have come, so the neighbours can be known. Never raises."""
        if self._neighbours is not None:
            self._neighbours.find()

    def _neighbour_failed(self, failure: dict[str, Any]) -> None:
        """Announces it to all ranks. Blocks, in the neighbours' thread, for up to four seconds, and then as `_peer_failed`."""
        board = self._board
        if board is None or self._failure is not None or self._is_leaving.is_set():
            return
        self._resume_neighbours()  # first: one of them may host the store
        limited(lambda: board.announce(failure), 2.0, None)
        if not polled(lambda: self._failure is not None, 2.0):
            self._peer_failed(failure)

    def _resume_neighbours(self) -> None:
        if self._neighbours is not None:
            self._neighbours.resume()

    def _peer_failed(self, failure: dict[str, Any]) -> None:
        """Says it, and ends this rank if its main thread does not come back."""
        self._failure = failure
        grace_s = self._grace_s
        if failure.get("by") == self._job.rank:
            # Announced by the main thread, which leaves then, or by a guard's thread because the main thread stands still.
            grace_s += _OWN_GRACE_S
        elif not self._is_known_here(failure):
            log("unhang", one_line(failure))
        if failure.get("kind") == "stopped":
            grace_s = min(grace_s, _RESUMED_GRACE_S)
        limited(lambda: self._until_it_closes(failure), _OWN_END_S, None)
        if self._comes_back(grace_s):
            return
        ending.abort_nccl()
        if not self._comes_back(1.0):
            log(
                "unhang",
                f"rank {self._job.rank} does not come back by itself; it ends now, because {one_line(failure)}",
            )
            ending.keep_error(as_error(failure))
            self._resume_neighbours()
            ending.leave_now(1)

    def _is_known_here(self, failure: Mapping[str, Any]) -> bool:
        """Whether this rank says it itself: it is its own, or all are interrupted or raise together, and nobody is to be named."""
        if failure.get("kind") in ("interrupted", "together"):
            return self._is_leaving.wait(1.0)
        return failure["rank"] == self._job.rank and self._is_leaving.is_set()

    def _until_it_closes(self, failure: Mapping[str, Any]) -> None:
        """Waits until the rank that failed has closed its connections: not before does gloo give back the calls that wait for it.

        On a busy machine that takes longer than the grace, which would end ranks that are about to raise. Blocks up to _OWN_END_S.
        """
        board, rank = self._board, failure.get("rank")
        speaks_for_itself = rank is not None and failure.get("by") == rank
        if board is None or not speaks_for_itself or rank == board.rank or "gloo" not in self._job.backend:
            return
        until = time.monotonic() + _OWN_END_S
        while not self._is_leaving.wait(board.poll_s) and time.monotonic() < until and not board.has(f"over/{rank}"):
            pass

    def _comes_back(self, limit_s: float) -> bool:
        """Whether the training has been left within the limit, and our own end has its time as well."""
        return self._is_leaving.wait(limit_s) and self._is_over.wait(_OWN_END_S)

    def _store_lost(self) -> None:
        if not self._is_leaving.is_set():
            self._peer_failed(self._gone(True))

    def _gone(self, is_gone: bool) -> dict[str, Any]:
        """The failure that is known without the store: whoever hosted it."""
        host, whose = ("the launcher's", "the launcher") if _is_launchers_store() else ("rank 0's", "rank 0")
        at = f" ({self._board.host}:{self._board.port})" if self._board is not None and self._board.port else ""
        if is_gone:
            what = f"the store on {host} host is gone{at}: {whose} has ended, or its host cannot be reached"
        else:
            what = f"the store on {host} host does not answer{at}: {whose} is stopped, or its host is overloaded"
        return {"rank": None, "by": None, "what": what, "text": ""}

    # What is announced, in the thread that trains.

    def failed(self, error: BaseException) -> None:
        """An exception leaves the body: announces it, or finds that it is the echo of another rank's.

        Blocks up to _SETTLE_LIMIT_S.

        Raises:
            PeerFailed: another rank failed first.
        """
        self._presence.came_from(error)
        self._is_leaving.set()
        board = self._board
        if board is None or isinstance(error, GeneratorExit):
            return
        if isinstance(error, SystemExit) and error.code in (0, None):
            self._leave(board)
            return
        standing = limited(lambda: self._settle(board, error), _SETTLE_LIMIT_S, None)
        if standing is None and is_echo(error):
            standing = self._gone(limited(board.store_is_gone, 1.5, True))
        if standing is not None and is_echo(error) and not standing["rank"] == standing["by"] == self._job.rank:
            raise as_error(standing) from error

    def _settle(self, board: Board, error: BaseException) -> dict[str, Any] | None:
        """The failure that stands; this rank's own where no other was first."""
        rank = self._job.rank
        known = self._failure
        if known is None and is_echo(error):
            known = self._cause_of_echo(board, error)
        if known is None and isinstance(error, PeerFailed) and error.failure is not None:
            known = board.announce(dict(error.failure))
        if known is None:
            kind = "interrupted" if isinstance(error, KeyboardInterrupt) else ""
            kind = "together" if isinstance(error, RanksDiffer) else kind
            known = board.announce({"rank": rank, "what": _why(error), "text": traceback_of(error), "kind": kind})
        with suppress(Exception):
            board.see()
        return known

    def _cause_of_echo(self, board: Board, error: BaseException) -> dict[str, Any] | None:
        """Who made this rank fail: who says so, who has left, or who does not answer."""
        if polled(lambda: self._failure is not None or board.has(FAILED), _ECHO_WAIT_S):
            return self._failure or board.failure()
        if board.has("left"):
            return board.announce({**board.get("left"), "by": None})
        if board.put_first("caller", board.rank) == board.rank:
            return board.announce(self._found_by_call(board, error))
        # Another rank asks; it will announce what it finds.
        polled(lambda: self._failure is not None or board.has(FAILED), ANSWER_S + 3 * board.poll_s + 1.0)
        return self._failure or board.failure()

    def _found_by_call(self, board: Board, error: BaseException) -> dict[str, Any]:
        roll = call_roll(board)
        where, waited = places(roll), f"rank {board.rank} waited for it: {_briefly(error)}"
        ended = [r for r in roll.answers if r != board.rank and board.has(f"done/{r}")]
        if roll.silent:
            named = ", ".join(map(str, roll.silent[:8])) + (" and more" if len(roll.silent) > 8 else "")
            many = f" (the same holds for ranks {named})" if len(roll.silent) > 1 else ""
            what = f"no sign of life: it was killed, is stopped, or its interpreter stands still{many}; {waited}"
            return {"rank": roll.silent[0], "what": what, "text": f"The others:\n{where}"}
        if ended:
            what = f"it had come to the end of the training, where rank {board.rank} still made a call; {waited}"
            return {"rank": ended[0], "what": what, "text": f"The ranks were at:\n{where}"}
        what = f"{_briefly(error)} (all ranks are alive)"
        return {"rank": board.rank, "what": what, "text": f"{traceback_of(error)}\nThe ranks were at:\n{where}"}

    def _leave(self, board: Board) -> None:
        """`sys.exit(0)` inside the body: fine where all ranks do it; else the others learn who it was."""
        # The peers of another backend would not notice that it is gone; by staying it can see that they wait for it.
        limit_s = _LEAVE_TOGETHER_S if "gloo" in self._job.backend else self._job.timeout_s
        limited(lambda: self._wait_for_all(board, limit_s), limit_s + 1.0, None)
        if not self.ends_well and self._failure is None:
            log("unhang", f"rank {board.rank} leaves with sys.exit(0) before the others have come to the end")
            what = "it left with sys.exit(0) before the others had come to the end of the training"
            limited(lambda: board.put_first("left", {"rank": board.rank, "what": what}), 1.0, None)

    def done(self) -> None:
        """A normal end: waits for the others, so that none leaves while another still talks to it.

        Blocks up to the timeout of the job, and no longer than it takes to see that it is in vain.

        Raises:
            PeerFailed: another rank failed before it came to its end.
            RanksDiffer: another rank waits for a call that this one does not make.
        """
        board, limit_s = self._board, self._job.timeout_s
        if board is None:
            return
        limited(lambda: self._wait_for_all(board, limit_s), limit_s + 1.0, None)
        self._is_leaving.set()
        failure = self._failure or limited(board.failure, 2.0, None)
        if failure is not None and failure.get("kind") != "interrupted":
            raise as_error(failure)
        if not self.ends_well:
            log("unhang", f"not all ranks have come to their end; rank {self._job.rank} leaves without them")

    def _wait_for_all(self, board: Board, limit_s: float) -> None:
        board.put(f"done/{board.rank}", time.time())
        if board.count("done", 1) == board.world_size:
            board.put("all done", True)
        until = time.monotonic() + limit_s
        before = Roll()
        while board.wait_for(["all done"], min(_CALL_EVERY_S, max(until - time.monotonic(), 0.0))):
            if self._failure is not None or board.has(FAILED) or time.monotonic() > until:
                return
            if board.put_first("closer", board.rank) == board.rank:
                before = self._look_for_waiters(board, before)
        self.ends_well = True

    def _let_the_first_go_first(self) -> None:
        """Many launchers take the first process that ends for the cause; so the others leave a moment after the one that failed."""
        board = self._board
        failure = self._failure or (board.failure() if board is not None else None)
        if board is None or failure is None or failure.get("rank") is None:
            return
        name = f"over/{failure['rank']}"
        if failure["rank"] == board.rank:
            board.put(name, True)
        elif failure.get("by") is not None:  # it speaks for itself, so it is there
            polled(lambda: board.has(name), _FIRST_GOES_S, 0.02)
            time.sleep(_HEAD_START_S)

    def _look_for_waiters(self, board: Board, before: Roll) -> Roll:
        """Announces a rank that waits for this one in a collective, since this one makes no more."""
        now = call_roll(board)
        made, _ = collectives_made()
        waiter = waits_in_vain(before, now, {"made": made}, self._job.backend)
        if waiter is not None:
            theirs = now.answers[waiter]
            what = (
                f"rank {board.rank} came to the end of the training after {made} collectives, while rank {waiter} waits in "
                f"its number {theirs['made']} at {theirs['at']}: they did not make the same number of steps or calls"
            )
            text = f"The ranks were at:\n{places(now)}"
            self._failure = board.announce(
                {"rank": board.rank, "by": None, "kind": "differ", "what": what, "text": text}
            )
        return now

    def part(self) -> None:
        """Rank 0 goes last, since the store may go with it. Blocks up to _SEEN_LIMIT_S. Never raises."""
        board = self._board
        if board is None or not board.port or _is_launchers_store():
            return
        if self.ends_well:
            name = "parted"
            limited(lambda: board.count(name, 1), 1.0, 0)
        else:
            name = "seen"
        if board.rank == 0 and not limited(board.store_is_gone, 1.5, True):
            limited(
                lambda: polled(lambda: board.count(name) >= board.world_size, _SEEN_LIMIT_S, 0.02), _SEEN_LIMIT_S, None
            )

    def over(self) -> None:
        """The groups are gone. Never raises."""
        self._is_leaving.set()
        self._is_over.set()
        if self._neighbours is not None:
            self._neighbours.stop()
        if not self.ends_well:
            self._resume_neighbours()
            limited(self._let_the_first_go_first, _FIRST_GOES_S + 2 * _HEAD_START_S, None)
        if self._watcher is not None:
            self._watcher.stop()


def _is_launchers_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def is_echo(error: BaseException) -> bool:
    """Whether an exception says no more than that a peer or the connection to it is gone."""
    return isinstance(error, RuntimeError | ConnectionError) and words.is_echo(in_words(error))


def _briefly(error: BaseException) -> str:
    """An error of gloo without its advice."""
    return in_words(error).partition(". This is typically caused by")[0]


def _why(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it left with sys.exit({shortened(repr(error.code), 200)}) before the end of the training"
    return in_words(error)
