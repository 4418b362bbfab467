"""When processes end, noted at once by a thread of its own: the watcher may be busy with a look for a second.

Which of two ends came first tells a signal from outside from the launcher's answer to a failed rank.
"""

from __future__ import annotations

import select
import signal
import threading
from contextlib import suppress

from unhang.watch.ranks import WatchedRank

_TURN_S = 0.5


class DeathClock(threading.Thread):
    """Notes the time and the exit code of each rank that ends."""

    def __init__(self) -> None:
        super().__init__(name="unhang-deaths", daemon=True)
        self._epoll, self._ranks = select.epoll(), dict[int, WatchedRank]()
        self._is_over = False

    def add(self, rank: WatchedRank) -> None:
        """Watches one more process; one without a descriptor has ended already."""
        if rank.pidfd is not None:
            self._ranks[rank.pidfd] = rank
            with suppress(OSError):  # not possible here: the watcher's own loop sees the end, later
                self._epoll.register(rank.pidfd, select.EPOLLIN)

    def run(self) -> None:
        """Notes ends until it is told to stop."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they shall wake the main thread
        while not self._is_over:
            for descriptor, _ in self._epoll.poll(_TURN_S):
                self._ranks[descriptor].see_end()
                self._epoll.unregister(descriptor)

    def stop(self) -> None:
        """Lets the thread end with its present turn. Blocks: never."""
        self._is_over = True
