import signal
import time
from dataclasses import dataclass


@dataclass
class Notice:
    node: str
    deadline: float


class DrainWatch:
    """Keeps the latest drain notice that the cluster has sent to this worker."""

    def __init__(self, node, grace=120.0):
        self.node = node
        self.grace = grace
        self._latest = None
        signal.signal(signal.SIGUSR2, self._arrived)

    def _arrived(self, signum, frame):
        self._latest = Notice(self.node, time.time() + self.grace)

    def notice(self):
        return self._latest
