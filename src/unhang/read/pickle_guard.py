"""Lets a child process decode a pickle first, under limits on memory and time, so that an attack hits the child.

A pickle of nine bytes can ask for gigabytes, and one of two hundred can keep the decoder busy for years (shared tuples
as a key), without a single global. The child is started once for many files.
"""

from __future__ import annotations

import select
import subprocess
import sys
from types import TracebackType
from typing import IO

from unhang.read import restricted_pickle

TIMEOUT_S = 20.0


class PickleGuard:
    """A child that tries pickles. Start it with `with`; it is started again after it fell.

    Blocks: `refusal` up to `timeout_s`.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PickleGuard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        child.wait()

    def refusal(self, data: bytes) -> str | None:
        """Why this pickle must not be decoded here; None if it may."""
        requests, answers = self._pipes()
        try:
            requests.write(len(data).to_bytes(8, "little"))
            requests.write(data)
            requests.flush()
        except OSError:
            self.close()
            return "the process that tried to decode it fell"
        ready, _, _ = select.select([answers], [], [], self._timeout_s)
        answer = answers.readline().decode("ascii", "replace").strip() if ready else ""
        if not answer:
            self.close()
            return (
                "the process that tried to decode it fell: it is damaged or an attack"
                if ready
                else f"decoding it takes longer than {self._timeout_s:g} s: it is damaged or an attack"
            )
        return None if answer == "ok" else answer

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", restricted_pickle.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        return self._child.stdin, self._child.stdout
