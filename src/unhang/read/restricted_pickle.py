"""Decodes a pickle of plain data: anything that names a class or a function is refused.

Run as a program, it is the child of `pickle_guard`: it decodes what it is sent under a limit on its memory, and answers
with one line per pickle, "ok" or the reason. Standard library only, because the child must start within milliseconds.
"""

from __future__ import annotations

import gc
import io
import pickle
import resource
import struct
import sys

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
        return "decoding it asks for far more memory than its size can need: it is damaged or an attack"
    if isinstance(error, EOFError) or "truncated" in str(error):
        return "it is cut short"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _limit_memory(size: int) -> None:
    with open("/proc/self/statm", "rb") as f:
        in_use = int(f.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = in_use + SPARE_BYTES + BYTES_PER_BYTE * size
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


def _serve() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := requests.read(8)) == 8:
        size = int.from_bytes(head, "little")
        data = requests.read(size)
        answer = "ok"
        try:
            _limit_memory(size)
            load(data)
        except PICKLE_ERRORS as error:
            answer = describe(error)
        answers.write(answer.encode("ascii", "backslashreplace") + b"\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
