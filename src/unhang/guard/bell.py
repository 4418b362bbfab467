"""What a thread of ours sleeps by: until a moment, or until another thread rings."""

from __future__ import annotations

from _thread import allocate_lock


class Bell:
    """Wakes the one thread that waits for it; rung while nobody waits, it ends the next wait at once.

    A `threading.Event` runs some hundred lines of Python at each wait, which are in no cache when a thread wakes now and then
    in the midst of a training; this is one call.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Never waits, also in a signal handler."""
        try:
            self._lock.release()
        except RuntimeError:  # it rings already
            pass

    def wait(self, limit_s: float | None) -> bool:
        """Whether it rang. Blocks up to `limit_s`, or for ever where that is None."""
        return self._lock.acquire(timeout=-1 if limit_s is None else max(0.0, limit_s))
