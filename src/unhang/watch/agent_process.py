"""The process that the watcher runs in: how it is forked, what runs in it, what it says, and which signals reached it."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unhang.watch import RunOptions
from unhang.watch.process_tree import fork_worker

ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
FORWARDED = (*ENDING, "SIGUSR1", "SIGUSR2")
GROUP_SIGNAL_WAIT_S = 0.05


@contextmanager
def signals_kept_for_us() -> Iterator[tuple[frozenset[int], set[int]]]:
    """Blocks the signals that the supervisor waits for; yields them and the mask that the job must get.

    What the caller ignores (nohup, background jobs) stays ignored.
    """
    numbers = {getattr(signal, name) for name in (*FORWARDED, "SIGWINCH")}
    waited = {n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN} | {signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        yield frozenset(int(n) for n in waited), {int(n) for n in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def joint_line(message: Mapping[str, Any]) -> str:
    """What the screen says of a verdict of the watcher of another node."""
    if message.get("is_withdrawn"):
        return "it moves again: no hang"
    kind, line = message.get("kind"), " ".join(str(message.get("line", "")).split())
    if kind == "left":
        return f"CRASH on this node: {line or 'its ranks have ended'}; the report over all nodes will be on {message.get('report')}"
    if kind == "crash":
        return f"CRASH over all nodes: {line}; report on {message.get('report')}"
    word = "HANG" if kind == "proven" else "STALLED"
    return f"{word} over all nodes ({kind}): {line}; report on {message.get('report')}"


def watch(options: RunOptions, run_dir: Path, root_pid: int, to_supervisor: int, from_supervisor: int) -> None:
    """Watches the job, with the kind of agent that the options ask for, until the supervisor says that it ended. Blocks: as long as the job."""
    from unhang.watch.agent import Agent as kind  # what judges is imported in the watcher's process alone

    if options.join is not None:
        from unhang.watch.joined_agent import JoinedAgent as kind
    elif options.metrics_port or options.webhook:
        from unhang.watch.outward import OutwardAgent as kind
    kind(options, run_dir, root_pid, to_supervisor, from_supervisor).run()


class Agent:
    """The watcher's process, as the supervisor sees it.

    It is in the job's process group, bears the command line of the job, and reports every signal number that reaches it
    (`signal_pipe`): that is how a signal sent to the whole group, or by `pkill -f` to all of that name, which the job already
    has, is distinguished from one sent only to us.
    """

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int) -> None:
        reports, to_us = os.pipe()
        from_us, orders = os.pipe()
        signal_pipe, signal_seen = os.pipe()
        self._orders, self._signal_pipe, self._reports = orders, signal_pipe, reports
        self._seen_at: dict[int, float] = {}
        self._buffer = b""

        def body() -> None:
            os.set_blocking(signal_seen, False)
            signal.set_wakeup_fd(signal_seen, warn_on_full_buffer=False)
            for name in FORWARDED:
                signal.signal(getattr(signal, name), lambda *_: None)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            watch(options, run_dir, root_pid, to_us, from_us)

        try:
            self.pid = fork_worker(
                "unhang-watcher", body, {to_us, from_us, signal_seen}, run_dir / "agent.log", like=root_pid
            )
        finally:
            for descriptor in (to_us, from_us, signal_seen):
                os.close(descriptor)
        os.set_blocking(reports, False)

    def messages(self) -> Iterator[dict[str, Any]]:
        """What it said since the last time; a line that makes no sense is left out."""
        with suppress(OSError):
            while data := os.read(self._reports, 65536):
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message

    def saw(self, signo: int) -> bool:
        """Whether the signal that we just got went to the whole group.

        Blocks: up to 0.05 s.
        """
        deadline = time.monotonic() + GROUP_SIGNAL_WAIT_S
        while True:
            wait_s = max(0.0, deadline - time.monotonic())
            if select.select([self._signal_pipe], [], [], 0 if signo in self._seen_at else wait_s)[0]:
                data = os.read(self._signal_pipe, 4096)
                self._seen_at.update(dict.fromkeys(data, time.monotonic()))
                if not data:  # it is dead
                    return False
            elif signo in self._seen_at or wait_s <= 0:
                return time.monotonic() - self._seen_at.pop(signo, float("-inf")) < 1

    def order_end(self) -> None:
        """Asks it to finish."""
        self._order(b"end\n")

    def report_interruption(self) -> None:
        """Asks it to keep what every rank does now; it answers with `secured`."""
        self._order(b"interrupted\n")

    def _order(self, order: bytes) -> None:
        with suppress(OSError):
            os.write(self._orders, order)
