"""One thread at a time: what two threads of a process do with one group meets in another order on another rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from unhang.errors import GroupInUse


class Turn:
    """Who may use the group now. The same thread may take its turn again within itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        self._holder = ""
        self._since = 0.0
        self._owner = 0

    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._owner == threading.get_ident()

    @contextmanager
    def taken(self, what: str, wait_s: float = 0.0) -> Iterator[None]:
        """Holds the turn for the body. Blocks up to `wait_s`.

        Raises:
            GroupInUse: another thread holds it.
        """
        me = f"thread {threading.current_thread().name!r}"
        if not self._lock.acquire(timeout=wait_s) if wait_s > 0 else not self._lock.acquire(blocking=False):
            since_s = time.monotonic() - self._since
            raise GroupInUse(
                f"{me} wants to begin {what!r} with {self._name!r}, which {self._holder}, since {since_s:.1f} s; "
                "the two would reach the ranks in any order"
            )
        before = self._holder, self._since, self._owner
        self._owner = threading.get_ident()
        if not self._holder:
            self._holder, self._since = f"{me} uses for {what!r}", time.monotonic()
        try:
            yield
        finally:
            self._holder, self._since, self._owner = before
            self._lock.release()
