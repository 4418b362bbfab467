import logging
import signal

log = logging.getLogger(__name__)


class StopRequested(SystemExit):
    pass


class SignalWatcher:
    def __init__(self, launcher=None):
        self.launcher = launcher
        self.received_sigterm = False
        self._previous = {}

    def register(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            self._previous[number] = signal.getsignal(number)
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, signum, frame):
        log.info("received signal %s", signum)
        if not self.received_sigterm and self.launcher is not None:
            self.launcher.kill(signum)
        self.received_sigterm = True

    def teardown(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
