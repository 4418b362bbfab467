"""A notice board that all ranks of a job read: who failed first, and why.

It lies in the store that the ranks met in, over a connection of its own: the default one is locked while another thread
waits on it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

FAILED = "failed"
_PREFIX = "unhang"
MOST_TEXT = 8000
POLL_S = 0.25
_MOST_ERRORS = 8


def connected(store: Any) -> Any:
    """A connection of our own to the same store, with our prefix; the same object where it has no other.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    import torch.distributed as dist

    inner = store
    while hasattr(inner, "underlying_store"):
        inner = inner.underlying_store
    if isinstance(inner, dist.TCPStore):
        own = inner.clone() if hasattr(inner, "clone") else dist.TCPStore(inner.host, inner.port, None, False)
        return dist.PrefixStore(_PREFIX, own)
    return dist.PrefixStore(_PREFIX, inner)


class Board:
    """The board as one rank sees it. No call blocks for longer than `limit_s`."""

    def __init__(self, store: Any, rank: int, world_size: int, run: str = "0", limit_s: float = 5.0) -> None:
        """`run` keeps the notices of restarts apart."""
        from datetime import timedelta

        self.rank, self.world_size = rank, world_size
        self._store, self._run = store, run
        with suppress(Exception):
            store.set_timeout(timedelta(seconds=limit_s))

    def _key(self, name: str) -> str:
        return f"{self._run}/{name}"

    def put(self, name: str, value: object) -> None:
        """Writes a notice.

        Raises:
            Exception: the store is gone.
        """
        self._store.set(self._key(name), json.dumps(value))

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

    def wait_for(self, names: list[str], limit_s: float) -> list[str]:
        """Those that have not come when the limit is over, or when somebody failed. Blocks up to `limit_s`."""
        until = time.monotonic() + limit_s
        missing = list(names)
        pause_s = 0.005
        while True:
            missing = [name for name in missing if not self.has(name)]
            if not missing or time.monotonic() > until or self.has(FAILED):
                return missing
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, POLL_S)

    def announce(self, failure: dict[str, Any]) -> dict[str, Any]:
        """Puts up a failure, unless another rank was first; returns the one that stands."""
        key, mine = self._key(FAILED), json.dumps({**failure, "text": str(failure.get("text", ""))[-MOST_TEXT:]})
        standing: dict[str, Any] = json.loads(self._store.compare_set(key, "", mine))
        return standing

    def failure(self) -> dict[str, Any] | None:
        """The first failure, if there is one."""
        return self.get(FAILED) if self.has(FAILED) else None


class Watcher:
    """Reads the board from a thread of its own, and calls once when somebody failed."""

    def __init__(self, board: Board, act: Callable[[dict[str, Any]], None]) -> None:
        self._board, self._act = board, act
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="unhang-board", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        errors = 0
        while not self._stopped.wait(POLL_S):
            try:
                failure = self._board.failure()
                errors = 0
            except Exception:  # noqa: BLE001 - the store ends with its host; that alone is no failure of the job
                errors += 1
                if errors >= _MOST_ERRORS:
                    return
                continue
            if failure is not None:
                self._act(failure)
                return

    def stop(self) -> None:
        """Ends the thread; blocks for less than a second."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
