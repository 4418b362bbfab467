"""Decodes a pickle of plain data: what names a class or a function is refused, and `PickleGuard` lets a child process try it first.

A pickle of nine bytes can ask for gigabytes, and one of two hundred can keep the decoder busy for years (shared tuples
as a key), without a single global. So an attack hits the child. Run as a program, this file is that child: it decodes
what it is sent under a limit on its memory, and answers with one line per pickle, "ok" or the reason. It imports nothing
but some of the standard library, because the child must start within milliseconds. It is started once for many pickles.
"""

from __future__ import annotations

import gc
import io
import pickle
import resource
import select
import struct
import sys

TYPE_CHECKING = False  # the child does without `typing`
if TYPE_CHECKING:
    import subprocess
    from types import TracebackType
    from typing import IO

SPARE_BYTES = 64 << 20
BYTES_PER_BYTE = 64

# What CPython's unpickler raises on damaged input.
PICKLE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    MemoryError,
    OverflowError,
    RecursionError,
    ImportError,
    struct.error,
)


class RestrictedUnpickler(pickle.Unpickler):
    """Knows numbers, strings, lists, tuples, sets and dictionaries, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> object:
        """Refuses every global."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a dump is plain data: it may be an attack")

    def persistent_load(self, pid: object) -> object:
        """Refuses references to things outside the file."""
        raise pickle.UnpicklingError("it refers to data outside of it, and a dump is plain data")


def load(data: bytes) -> object:
    """Decodes without executing. The garbage collector would double the time, so it rests meanwhile.

    Raises:
        Exception: one of `PICKLE_ERRORS`.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:  # BytesIO alone has no peek() and is three times slower.
        return RestrictedUnpickler(io.BufferedReader(io.BytesIO(data), 1 << 20)).load()
    finally:
        if was_enabled:
            gc.enable()


def describe(error: BaseException) -> str:
    """What a decoding error means, as one line."""
    if isinstance(error, MemoryError):
        return "decoding it asks for far more memory than its size explains: it is damaged or an attack"
    if isinstance(error, EOFError) or "truncated" in str(error):
        return "it is cut short"
    return " ".join(str(error).split())[:200] or type(error).__name__


def limit_memory(spare_bytes: int) -> None:
    """Lets this process allocate so many bytes more than it has."""
    with open("/proc/self/statm", "rb") as f:
        in_use = int(f.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = in_use + spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


def _serve() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := requests.read(8)) == 8:
        size = int.from_bytes(head, "little")
        data = requests.read(size)
        answer = "ok"
        try:
            limit_memory(SPARE_BYTES + BYTES_PER_BYTE * size)
            load(data)
        except PICKLE_ERRORS as error:
            answer = describe(error)
        answers.write(answer.encode("ascii", "backslashreplace") + b"\n")
        answers.flush()


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
        import subprocess

        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        return self._child.stdin, self._child.stdout


if __name__ == "__main__":
    _serve()
