"""Processes of ours that end when we do: a worker that is spoken with in lines of JSON, and what each of them does first.

They ask the kernel for it themselves: what `subprocess` would have a new child do before its program starts runs in a fork of a process with
threads, whose locks and hooks may then be half held.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

_PR_SET_PDEATHSIG = 1
_MAKER = "UNHANG_MAKER_PID"
_WORKER_END_LIMIT_S = 5.0
_MOST_ERROR_BYTES = 2000
_LIBC = ctypes.CDLL(None)


def ask_to_die_with_parent() -> None:
    """Has the kernel end this process when the thread that started it ends."""
    with suppress(AttributeError):  # Linux only
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def for_child(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a new process that is to call `die_with_maker` first."""
    return {**environment, _MAKER: str(os.getpid())}


def die_with_maker() -> None:
    """Has the kernel end this process with the one that started it, where that asked for it; ends it at once where that has gone."""
    maker = os.environ.pop(_MAKER, "")  # it is not meant for processes that this one starts
    if maker:
        ask_to_die_with_parent()
        if os.getppid() != int(maker):
            os._exit(1)


def worker_command(task: str, options: Mapping[str, object]) -> list[str]:
    """The command line of `check/worker.py` for one of its tasks."""
    return [
        sys.executable,
        "-m",
        "unhang.check.worker",
        task,
        *(f"--{name}={value}" for name, value in options.items()),
    ]


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
                env=for_child(environment),
                start_new_session=True,
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
        """What it has said since the last time. `is_silent` is set when it can say no more. Blocks: up to `timeout_s`."""
        if not self._selector.select(timeout_s):
            return []
        data = os.read(self._descriptor, 1 << 16)
        self.is_silent = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):
                if isinstance(said := json.loads(line), dict):
                    found.append(said)
        return found

    def last_words(self, timeout_s: float) -> str:
        """How it ended, with the last line that it wrote to stderr. Blocks: up to `timeout_s`."""
        self.wait_for_end(timeout_s)
        size = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), _MOST_ERROR_BYTES, max(size - _MOST_ERROR_BYTES, 0))
        said = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
        return f"{_how_ended(self._process.poll())}{f', last said: {said[-1]}' if said else ''}"

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
        """Lets it leave by itself. Blocks: up to `timeout_s`."""
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
            self.wait_for_end(_WORKER_END_LIMIT_S)
        finally:
            self._selector.close()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                if stream:
                    with suppress(OSError):
                        stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _how_ended(code: int | None) -> str:
    if code is None:
        return "it closed its output and did not end"
    if code < 0:
        with suppress(ValueError):
            return f"the worker was ended by {signal.Signals(-code).name}"
    return f"the worker exited with code {code}"
