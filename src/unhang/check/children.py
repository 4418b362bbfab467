"""Children that cannot keep us: a call that may never come back, made in a fork with a limit; and a worker process.

A thread that waits for a dead file system cannot be ended, and keeps its whole process from ending. A child can be left to the kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

_PR_SET_PDEATHSIG = 1
_END_LIMIT_S, _WORKER_END_LIMIT_S = 0.2, 5.0
_MOST_ANSWER, _MOST_ERROR_BYTES = 1 << 20, 2000
_LIBC = ctypes.CDLL(None)


class TookTooLong(Exception):
    """The call had not come back within its limit."""


class Died(RuntimeError):
    """The process that made the call ended before it had an answer."""


def limited(call: Callable[[], Any], limit_s: float) -> Any:
    """What a call returns, as far as JSON knows it. Blocks up to `limit_s`, and a moment to end the child.

    Raises:
        TookTooLong: it did not come back.
        OSError: it raised one.
        Died: its process ended.
        RuntimeError: it raised something else.
    """
    pid, reader = _started_steps(lambda: (make() for make in (call,)), dies_with_parent=True)
    try:
        text = _read(reader, limit_s)
    finally:
        os.close(reader)
        _end(pid)
    if not text.endswith(b"\n"):
        raise Died("the process that was asked ended without an answer")
    answer = json.loads(text)
    if "errno" in answer:
        raise OSError(answer["errno"], answer["error"])
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["value"]


@contextmanager
def kept_while(make: Callable[[], Any], remove: Callable[[], Any], limit_s: float) -> Iterator[None]:
    """Makes something that is removed at the end of the block, and also when this process is killed within it.

    A child holds it, and removes it as soon as nobody holds the other end of its pipe. Blocks up to `limit_s` each for making
    and removing.

    Raises:
        TookTooLong, OSError, RuntimeError: it could not be made.
    """
    watched, held = os.pipe()

    def keep() -> Iterator[Any]:
        os.close(held)
        try:
            yield make()
            os.read(watched, 1)
        finally:
            remove()

    pid, reader = _started_steps(keep)
    os.close(watched)
    try:
        text = _read(reader, limit_s, until_line=True)
        if b"\n" not in text:
            raise RuntimeError("the process that was asked ended without an answer")
        answer = json.loads(text.split(b"\n")[0])
        if "error" in answer:
            raise OSError(answer.get("errno") or 0, answer["error"])
        yield
    finally:
        os.close(held)
        with suppress(TookTooLong):
            _read(reader, limit_s)
        os.close(reader)
        _end(pid)


def _started_steps(steps: Callable[[], Iterator[Any]], dies_with_parent: bool = False) -> tuple[int, int]:
    """Forks; the child writes a line for each step. Its pid, and where to read."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork in a process with threads
        pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if dies_with_parent:
            _ask_to_die_with_parent()
        else:  # it ends by itself when its parent does, and has something to remove before
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _write_steps(steps, writer)
    finally:
        os._exit(0)


def _write_steps(steps: Callable[[], Iterator[Any]], writer: int) -> None:
    try:
        for value in steps():
            os.write(writer, json.dumps({"value": value}).encode() + b"\n")
    except OSError as error:
        answer = {"errno": error.errno or 0, "error": error.strerror or str(error)}
        os.write(writer, json.dumps(answer).encode() + b"\n")
    except BaseException as error:  # noqa: BLE001  whatever it is belongs into the answer
        os.write(writer, json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}).encode() + b"\n")


def _read(reader: int, limit_s: float, until_line: bool = False) -> bytes:
    deadline = time.monotonic() + limit_s
    text = b""
    while len(text) < _MOST_ANSWER and not (until_line and b"\n" in text):
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TookTooLong(f"no answer within {limit_s:g} s")
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    return text


def _end(pid: int) -> None:
    """Kills and reaps the child; one that is stuck in the kernel is left to it."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_LIMIT_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.002)


def _ask_to_die_with_parent() -> None:
    with suppress(AttributeError):  # Linux only
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die_with(parent: int) -> Callable[[], None]:
    """What a new child does first, so that the kernel ends it with `parent`."""

    def ask() -> None:
        _ask_to_die_with_parent()
        if os.getppid() != parent:
            os._exit(1)

    return ask


def worker_command(module: str, options: Mapping[str, object]) -> list[str]:
    """The command line that runs a module of ours with these options."""
    return [sys.executable, "-m", module, *(f"--{name}={value}" for name, value in options.items())]


class Worker:
    """A process that speaks in lines of JSON: in a session of its own, dead with us whatever happens, and ended by `end`.

    The kernel ends it when the *thread* that started it ends, so that must be one that stays.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdout
        self._descriptor = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._descriptor, selectors.EVENT_READ)
        self.is_silent = False
        self.pid = self._process.pid

    def lines(self, timeout_s: float) -> list[dict[str, Any]]:
        """What it has said since the last time. `is_silent` is set when it can say no more.

        Blocks: up to `timeout_s`.
        """
        if not self._selector.select(timeout_s):
            return []
        data = os.read(self._descriptor, 1 << 16)
        self.is_silent = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict)]

    def last_words(self, timeout_s: float) -> str:
        """How it ended, with the last line that it wrote to stderr.

        Blocks: up to `timeout_s`.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        code = self._process.poll()
        size = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), _MOST_ERROR_BYTES, max(size - _MOST_ERROR_BYTES, 0))
        said = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
        return f"{_how_ended(code)}{f', last said: {said[-1]}' if said else ''}"

    def send(self, command: Mapping[str, Any]) -> bool:
        """Gives it one line; whether it could be given."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True

    def condition(self) -> str:
        """The state that the kernel gives it; "" when it is not there or merely sleeps or runs."""
        try:
            with open(f"/proc/{self._process.pid}/stat") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            return ""
        return {"T": "its process is stopped", "D": "its process sleeps in the kernel"}.get(state, "")

    def wait_for_end(self, timeout_s: float) -> None:
        """Lets it leave by itself.

        Blocks: up to `timeout_s`.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kills it, if it still runs. Blocks up to a few seconds."""
        try:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_WORKER_END_LIMIT_S)
        finally:
            self._selector.close()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                if stream:
                    with suppress(OSError):
                        stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


def _how_ended(code: int | None) -> str:
    if code is None:
        return "it closed its output and did not end"
    if code < 0:
        with suppress(ValueError):
            return f"the worker was ended by {signal.Signals(-code).name}"
    return f"the worker exited with code {code}"
