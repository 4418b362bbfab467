"""The one thread of ours in a rank: heartbeat, progress of the groups, and flight.pickle when the agent asks for it."""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from . import faults, flight, page, variables
from .recording import Recording, attempt

_TURN_S = 0.25
_LONGEST_PATH = 100


class Control:
    """Owns ctl.sock and a pipe that ends the thread. Blocks nobody: a daemon that the process does not wait for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._socket = attempt("ctl.sock", self._bind)
        self._abort_watch = faults.AbortWatch(recording)
        self._thread = threading.Thread(target=self._run, name="unhang-control", daemon=True)
        recording.inherited_fds += [self._wake_reader, self._wake_writer]
        recording.at_fork.append(self._drop_socket)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread before the interpreter is taken apart. Blocks: up to 0.2 s, usually not at all."""
        self._stopping = True
        os.write(self._wake_writer, b"x")
        self._thread.join(0.2)

    def _bind(self) -> socket.socket | None:
        path = self._recording.path("ctl.sock")
        if len(path.encode()) > _LONGEST_PATH:
            self._recording.note("ctl.sock", f"the path is too long for a unix socket: {path}")
            return None
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if os.path.exists(path):
                os.unlink(path)
            bound.bind(path)
        except OSError:
            bound.close()
            raise
        return bound

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        watched = [self._wake_reader] if self._socket is None else [self._wake_reader, self._socket.fileno()]
        while not self._stopping:
            try:
                ready = select.select(watched, [], [], _TURN_S)[0]
                self._turn(bool(self._socket and self._socket.fileno() in ready))
            except Exception as error:  # noqa: BLE001
                self._recording.note("control thread", f"{type(error).__name__}: {error}")
                time.sleep(_TURN_S)

    def _turn(self, is_asked: bool) -> None:
        words = self._recording.page.words
        words[page.HEARTBEAT] = time.monotonic_ns()
        if words[page.INITIALIZED] == 1:
            self._poll()
        if is_asked and self._socket is not None and b"dump" in self._drain(self._socket):
            attempt("variables.json", variables.write, self._recording)
            attempt("flight.pickle", flight.dump, self._recording, "flight.pickle")
        self._abort_watch.check()

    def _poll(self) -> None:
        try:
            flight.poll_status(self._recording)
        except Exception as error:  # noqa: BLE001
            self._recording.page.words[page.FAILED_POLLS] += 1
            self._recording.note("progress of the groups", f"{type(error).__name__}: {error}")

    @staticmethod
    def _drain(bound: socket.socket) -> list[bytes]:
        """All requests that wait: ten of them are one dump."""
        found: list[bytes] = []
        while len(found) < 64:
            try:
                found.append(bound.recv(64))
            except OSError:
                break
        return found
