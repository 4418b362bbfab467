"""Passes the job's output through, untouched and at once, and keeps a copy of it in `output.log`.

The relay is a process of its own: it survives the supervisor and the watcher, so the job never meets a closed pipe
because of us. Only a SIGKILL of the relay itself gives the job SIGPIPE (EIO on a terminal); that cannot be helped.
"""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import signal
import socket
import termios
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from unhang.watch.process_tree import fork_worker

HEAD_BYTES = 1 << 20
TAIL_BYTES = 7 << 20
SLACK_BYTES = 2 << 20
CHUNK_BYTES = 1 << 16
GAP = b"\n... unhang: output left out here ...\n"
INTERRUPTED = b"\n... unhang: the job was told to end here ...\n"
LOG_INCOMPLETE = 3
# The last line of the traceback by which torchrun tells that it got SIGTERM, and what every traceback begins with.
_TRACEBACK = re.compile(rb"(?:\[rank\d+\]: ?)?Traceback \(most recent call last\):")
_OWN_END = re.compile(
    rb"torch\.distributed\.elastic\.multiprocessing\.api\.SignalException: Process \d+ got signal: 15\b"
)
_RESIZE, _STOP_LOG, _MARK, _FOLD = b"w", b"x", b"m", b"f"
_READER_IS_GONE = (errno.EPIPE, errno.EIO, errno.EBADF)
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN", "SIGPIPE", "SIGUSR1", "SIGUSR2")


class OutputLog:
    """The first `head` and the last `tail` bytes of what is written, at any time a plain readable file.

    Never raises: the log is worth less than the job. `failed` holds the first error, nothing is written after it.
    """

    def __init__(self, path: Path, head: int = HEAD_BYTES, tail: int = TAIL_BYTES, slack: int = SLACK_BYTES) -> None:
        self._head, self._tail, self._slack = head, tail, slack
        self._size = 0
        self._has_gap = False
        self._is_open = False
        self._lock = threading.Lock()
        self.failed: OSError | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            self._is_open = True
        except OSError as error:
            self.failed = error

    def write(self, data: bytes) -> None:
        """Appends; the middle is thrown away as soon as there is `slack` too much of it."""
        with self._lock:
            if not self._is_open:
                return
            try:
                self._append(data)
                if self._size > self._head + len(GAP) + self._tail + self._slack:
                    self._cut()
            except OSError as error:
                self._stop(error)

    def close(self) -> None:
        """Cuts the file to its final size; later writes are dropped."""
        with self._lock:
            if not self._is_open:
                return
            try:
                if self._size > self._head + self._tail + (len(GAP) if self._has_gap else 0):
                    self._cut()
            except OSError as error:
                self.failed = error
            self._stop(self.failed)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, self._size)
            self._size += written
            view = view[written:]

    def _cut(self) -> None:
        """Moves the last bytes down to behind the head, piece by piece, so that no second copy takes room."""
        source, end = self._size - self._tail, self._size
        self._size = self._head
        self._append(GAP)
        while source < end:
            piece = os.pread(self._fd, min(CHUNK_BYTES, end - source), source)
            source += len(piece)
            self._append(piece)
        os.ftruncate(self._fd, self._size)
        self._has_gap = True

    def _stop(self, error: OSError | None) -> None:
        self.failed = error
        self._is_open = False
        with suppress(OSError):
            os.close(self._fd)


@dataclass(frozen=True)
class Channel:
    """What the job writes into `job_end` arrives at `source` and goes on to `sink`, the descriptor we were given."""

    sink: int
    source: int
    job_end: int
    is_terminal: bool


def _same_target(a: int, b: int) -> bool:
    """Whether two descriptors lead to the same place: then one channel for both keeps the order of their output."""
    one, two = os.fstat(a), os.fstat(b)
    return (one.st_dev, one.st_ino, one.st_rdev) == (two.st_dev, two.st_ino, two.st_rdev)


def _copy_window_size(origin: int, target: int) -> None:
    with suppress(OSError, termios.error):
        termios.tcsetwinsize(target, termios.tcgetwinsize(origin))


def _open_terminal(sink: int) -> Channel:
    """A pseudo-terminal like the real one, but for its output processing: the real one does that once already."""
    source, job_end = pty.openpty()
    attributes = termios.tcgetattr(sink)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(job_end, termios.TCSANOW, attributes)
    _copy_window_size(sink, job_end)
    return Channel(sink, source, job_end, is_terminal=True)


def open_channels() -> dict[int, Channel]:
    """A channel for stdout (1) and stderr (2); the same one where both lead to the same place.

    Raises:
        OSError: no pipe or terminal could be had.
    """
    channels: dict[int, Channel] = {}
    for sink in (1, 2):
        if sink == 2 and _same_target(1, 2):
            channels[2] = channels[1]
        elif os.isatty(sink):
            channels[sink] = _open_terminal(sink)
        else:
            source, job_end = os.pipe()
            channels[sink] = Channel(sink, source, job_end, is_terminal=False)
    return channels


def _write_all(sink: int, data: bytes) -> None:
    """Writes everything, also where somebody made the descriptor non-blocking.

    Blocks: as long as the reader takes, as the job itself would.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(sink, view) :]
        except BlockingIOError:
            select.select([], [sink], [], 1)


def _read(source: int) -> bytes:
    try:
        return os.read(source, CHUNK_BYTES)
    except OSError:  # EIO: every descriptor of the pseudo-terminal is closed
        return b""


class Fold:
    """Shows one line for the launcher's traceback of its own end, once the job is ended for a hang; the log keeps all of it.

    `is_wanted`: set from then on. Until then every byte is shown as it comes.
    """

    def __init__(self, is_wanted: threading.Event) -> None:
        self._is_wanted = is_wanted
        self._held: list[bytes] = []  # of a traceback
        self._begun = b""  # of a line

    def shown(self, data: bytes) -> bytes:
        """What of the data is to be shown now."""
        if not self._is_wanted.is_set():
            return data
        *lines, self._begun = (self._begun + data).splitlines(keepends=True) or [b""]
        if self._begun.endswith((b"\r", b"\n")):
            lines, self._begun = [*lines, self._begun], b""
        out = []
        for line in lines:
            if self._held and _OWN_END.match(line):
                out.append(
                    b"[the launcher was ended by SIGTERM; its traceback of %d lines is in output.log]\n"
                    % (len(self._held) + 1)
                )
                self._held = []
            elif _TRACEBACK.match(line) or (self._held and line[:1] in b" \r\n"):
                self._held.append(line)
            else:
                out += [*self._held, line]
                self._held = []
        return b"".join(out)

    def rest(self) -> bytes:
        """What was held back and belongs to no such traceback."""
        return b"".join(self._held) + self._begun


def pump(channel: Channel, log: OutputLog, fold: Fold | None = None) -> None:
    """Passes one channel on to its end.

    Closes the job's end when the reader is gone, as would have happened without us. Another error of the sink (a full
    disk) costs the bytes that could not be written, never the job.
    """
    while data := _read(channel.source):
        try:
            _write_all(channel.sink, fold.shown(data) if fold else data)
        except OSError as error:
            if error.errno in _READER_IS_GONE:
                log.write(data)
                break
        log.write(data)
    with suppress(OSError):
        _write_all(channel.sink, fold.rest() if fold else b"")
    with suppress(OSError):
        os.close(channel.source)


def _obey(control: socket.socket, channels: list[Channel], log: OutputLog, is_ending: threading.Event) -> None:
    """Does what the supervisor says until it is gone, which is no reason to end."""
    while order := control.recv(1):
        if order == _STOP_LOG:
            log.close()
        elif order == _FOLD:
            is_ending.set()
        elif order == _MARK:
            log.write(INTERRUPTED)
        elif order == _RESIZE:
            for channel in channels:
                if channel.is_terminal:
                    _copy_window_size(channel.sink, channel.source)
            control.send(order)


def _relay(channels: list[Channel], control: socket.socket, log_path: Path) -> None:
    os.setsid()  # Ctrl-C and Ctrl-Z are for the job
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    log = OutputLog(log_path)
    is_ending = threading.Event()
    threading.Thread(target=_obey, args=(control, channels, log, is_ending), daemon=True).start()
    pumps = [threading.Thread(target=pump, args=(channel, log, Fold(is_ending))) for channel in channels]
    for thread in pumps:
        thread.start()
    for thread in pumps:
        thread.join()
    log.close()
    os._exit(LOG_INCOMPLETE if log.failed else 0)


@dataclass
class Relay:
    """The supervisor's view of the relay: its pid, the job's ends of the channels, and a line to it."""

    pid: int
    control: socket.socket
    channels: dict[int, Channel]
    has_terminal: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_terminal = any(c.is_terminal for c in self.channels.values())

    def job_descriptors(self) -> dict[int, int]:
        """What the job must have as stdout (1) and stderr (2)."""
        return {number: channel.job_end for number, channel in self.channels.items()}

    def close_job_ends(self) -> None:
        """Closes our copies, so that the relay sees the end of the output."""
        for descriptor in {c.job_end for c in self.channels.values()}:
            os.close(descriptor)

    def resize(self, timeout_s: float = 0.2) -> None:
        """Gives the job's terminals the size of the real one.

        Blocks: up to `timeout_s`, where the real terminal is held (Ctrl-S).
        """
        with suppress(OSError):
            self.control.settimeout(timeout_s)
            self.control.send(_RESIZE)
            self.control.recv(1)

    def mark_interruption(self) -> None:
        """Notes in the log that a signal came: what is printed from now on is its doing."""
        with suppress(OSError):
            self.control.send(_MARK)

    def fold(self) -> None:
        """The job is ended for a hang: the launcher's traceback of that is no news."""
        with suppress(OSError):
            self.control.send(_FOLD)

    def stop_log(self) -> None:
        """The run directory goes away: from now on the output is only passed through."""
        with suppress(OSError):
            self.control.send(_STOP_LOG)


def start_relay(log_path: Path) -> Relay:
    """Opens the channels and starts the process that serves them.

    Raises:
        OSError: a descriptor or a process could not be had.
    """
    channels = open_channels()
    ours, theirs = socket.socketpair()
    sources = {c.source: c for c in channels.values()}
    keep = {1, 2, theirs.fileno(), *sources}
    pid = fork_worker("unhang-relay", lambda: _relay(list(sources.values()), theirs, log_path), keep, errors_to=None)
    theirs.close()
    for source in sources:
        os.close(source)
    return Relay(pid, ours, channels)
