"""The member's side of the search: a process that tests groups, and is ended and started anew when it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

from unhang.preflight.collectives.runner import die_with

_END_WAIT_S = 5.0


class TestProcess:
    """One worker process, which dies with us whatever happens."""

    __test__ = False

    def __init__(self, rank: int, backend: str, device: str, store: str, start_limit_s: float) -> None:
        self.rank, self._start_limit_s = rank, start_limit_s
        options = {"rank": rank, "backend": backend, "device": device, "store": store, "start-limit": start_limit_s}
        self._command = [sys.executable, "-m", "unhang.preflight.links.worker"]
        self._command += [f"--{name}={value}" for name, value in options.items()]
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def ensure(self) -> bool:
        """Starts it if it does not run, and waits until it can test. Blocks up to the start limit."""
        if self._process is not None and self._process.poll() is None:
            return True
        self.end()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )
        self._buffer = b""
        if "ready" in self._answer(self._start_limit_s):
            return True
        self.end()
        return False

    def test(self, number: int, ranks: list[int], prefix: str, limit_s: float) -> dict[str, Any] | None:
        """What it says of a group; None where it says nothing within twice the limit, or does not run. Blocks up to that."""
        if self._process is None or self._process.stdin is None:
            return None
        command = {"test": number, "ranks": ranks, "prefix": prefix, "limit_s": limit_s}
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        answer = self._answer(2 * limit_s)
        if answer.pop("test", None) != number:
            self.end()
            return None
        return answer

    def _answer(self, limit_s: float) -> dict[str, Any]:
        """Its next line; an empty dict where none comes."""
        assert self._process
        assert self._process.stdout
        deadline = time.monotonic() + limit_s
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return {}
                data = os.read(descriptor, 1 << 16)
                if not data:
                    return {}
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}

    def end(self) -> None:
        """Ends it, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_WAIT_S)
        for stream in (process.stdin, process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
