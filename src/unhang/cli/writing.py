"""Where a command's result goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from unhang.errors import UnhangError


class CannotWrite(UnhangError):
    """The output cannot be written where it was asked for."""


def wants_color(descriptor: int) -> bool:
    """Whether text written to this descriptor may be coloured."""
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_out(content: bytes, output: Path | None) -> None:
    """Writes to a file, or to stdout where none is given.

    Raises:
        CannotWrite: the file cannot be written.
    """
    if output is None:
        sys.stdout.buffer.write(content)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise CannotWrite(f"{output}: {error.strerror}") from error
