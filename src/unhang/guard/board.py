"""A notice board that all ranks of a job read: who failed first, and why.

It lies in the store that the ranks met in, over a connection of its own: the default one is locked while another thread
waits on it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from unhang.guard.bell import Bell
from unhang.guard.telling import shortened

FAILED = "failed"
# There is something to read: one question per look as long as nothing has happened.
NEWS = "news"
MOST_TEXT = 8000
POLL_S = 0.4
_RANKS_PER_POLL_S = 1024
_PREFIX = "unhang"
_MOST_ERRORS = 4


def connected(store: Any) -> Any:
    """A connection of our own to the same store, with our prefix; the same object where it has no other.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    import torch.distributed as dist

    if hasattr(store, "clone"):
        return dist.PrefixStore(_PREFIX, store.clone())
    inner = innermost(store)
    if isinstance(inner, dist.TCPStore):
        return dist.PrefixStore(_PREFIX, dist.TCPStore(inner.host, inner.port, None, False))
    return dist.PrefixStore(_PREFIX, inner)


def innermost(store: Any) -> Any:
    """The store below all prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


class Board:
    """The board as one rank sees it.

    No call waits for a notice for longer than `limit_s`. A call on a store whose host has been stopped (not ended) may stand
    still; who cannot afford that asks from a thread of its own.
    """

    def __init__(self, store: Any, rank: int, world_size: int, run: str = "0", limit_s: float = 5.0) -> None:
        """`run` keeps the notices of restarts apart."""
        self.rank, self.world_size = rank, world_size
        self.poll_s = min(max(POLL_S, world_size / _RANKS_PER_POLL_S), 2.0)
        self.keeps_alive: Any = None
        self._store, self._run = store, run
        self._has_seen = False
        inner = innermost(store)
        self.host, self.port = str(getattr(inner, "host", "")), int(getattr(inner, "port", 0) or 0)
        # Only on a connection of our own: a file or a store in memory is the job's, and so is its timeout.
        if self.port:
            with suppress(Exception):
                store.set_timeout(timedelta(seconds=limit_s))

    def _key(self, name: str) -> str:
        return f"{self._run}/{name}"

    def put(self, name: str, value: object) -> None:
        """Writes a notice; what JSON does not know is written as text.

        Raises:
            Exception: the store is gone.
        """
        self._store.set(self._key(name), json.dumps(value, default=str))

    def has(self, *names: str) -> bool:
        """Whether all of these notices are there; does not wait.

        Raises:
            Exception: the store is gone.
        """
        return bool(self._store.check([self._key(name) for name in names]))

    def get(self, name: str) -> Any:
        """A notice that is there.

        Raises:
            Exception: it is not, or the store is gone.
        """
        return json.loads(self._store.get(self._key(name)))

    def get_all(self, names: Sequence[str]) -> list[Any]:
        """Notices that are all there, in one question where the store can.

        Raises:
            Exception: one is not, or the store is gone.
        """
        if self.port and self._store.has_extended_api():
            return [json.loads(text) for text in self._store.multi_get([self._key(name) for name in names])]
        return [self.get(name) for name in names]

    def count(self, name: str, more: int = 0) -> int:
        """Adds to a counter of the whole job, which begins at 0, and returns it.

        Raises:
            Exception: the store is gone.
        """
        return int(self._store.add(self._key(name), more))

    def put_first(self, name: str, value: object) -> Any:
        """Writes a notice unless it is there; returns the one that stands.

        Raises:
            Exception: the store is gone.
        """
        return json.loads(self._store.compare_set(self._key(name), "", json.dumps(value, default=str)))

    def wait_for(self, names: Sequence[str], limit_s: float) -> list[str]:
        """Those that have not come when the limit is over, or when somebody failed. Blocks up to `limit_s`.

        Raises:
            Exception: the store is gone.
        """
        until = time.monotonic() + limit_s
        pause_s = 0.005
        while not self.has(*names):
            if time.monotonic() > until or self.has(FAILED):
                return [name for name in names if not self.has(name)]
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, self.poll_s)
        return []

    def announce(self, failure: dict[str, Any]) -> dict[str, Any]:
        """Puts up a failure, unless another rank was first; returns the one that stands.

        `rank`: who failed; `what`: why, in a line; `text`: its traceback; `by`: who says so, if it is another rank.

        Raises:
            Exception: the store is gone.
        """
        mine = {"by": self.rank, **failure, "text": shortened(str(failure.get("text", "")), MOST_TEXT)}
        self.put(NEWS, True)
        standing: dict[str, Any] = self.put_first(FAILED, mine)
        self.see()
        return standing

    def failure(self) -> dict[str, Any] | None:
        """The first failure, if there is one.

        Raises:
            Exception: the store is gone.
        """
        return self.get(FAILED) if self.has(FAILED) else None

    def see(self) -> None:
        """Counts this rank, once, among those that know of the failure."""
        if not self._has_seen:
            self._has_seen = True
            self.count("seen", 1)

    def store_is_gone(self, limit_s: float = 1.0) -> bool:
        """Whether nobody listens where the store was. Blocks up to `limit_s`."""
        if not self.port:
            return False
        try:
            socket.create_connection((self.host, self.port), limit_s).close()
        except OSError:
            return True
        return False


class Watcher:
    """Reads the board from a thread of its own: calls `act` once when somebody failed, `lost` once when the store is gone.

    `on_news` is called at every look from the first notice of any kind on.
    """

    def __init__(
        self,
        board: Board,
        act: Callable[[dict[str, Any]], None],
        lost: Callable[[], None] | None = None,
        on_news: Callable[[], None] | None = None,
    ) -> None:
        self._board, self._act, self._lost, self._on_news = board, act, lost, on_news
        self._is_stopped, self._bell = False, Bell()
        self._thread = threading.Thread(target=self._watch, name="unhang-board", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        errors = 0
        while not self._bell.wait(self._board.poll_s):
            try:
                failure = self._look()
                errors = 0
            except Exception:  # noqa: BLE001 - the store ends with its host; who it was is asked below
                errors += 1
                if errors < _MOST_ERRORS:
                    continue
                if self._lost is not None and self._board.store_is_gone() and not self._is_stopped:
                    self._lost()
                return
            if failure is not None:
                self._act(failure)
                return

    def _look(self) -> dict[str, Any] | None:
        if not self._board.has(NEWS):
            return None
        if self._on_news is not None:
            self._on_news()
        failure = self._board.failure()
        if failure is not None:
            with suppress(Exception):
                self._board.see()
        return failure

    def stop(self) -> None:
        """Ends the thread; blocks for less than a second."""
        self._is_stopped = True
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
