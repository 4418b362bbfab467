"""A log from a file: whole where it is small, else the lines that may matter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unhang.read.files import regular_size, unreadable
from unhang.read.output_log import OutputLog, parse_output

HEAD_BYTES, TAIL_BYTES = 8 << 20, 24 << 20


def read_output(path: Path, rank: int | None = None, ranks_by_pid: Mapping[int, int] | None = None) -> OutputLog:
    """An output from a file. `rank`: whose output it is, where it is one rank's alone.

    Raises:
        UnreadableInput: the file cannot be read.
    """
    size = regular_size(path)
    try:
        with path.open("rb") as f:
            data = f.read(HEAD_BYTES + TAIL_BYTES if size <= HEAD_BYTES + TAIL_BYTES else HEAD_BYTES)
            if size > HEAD_BYTES + TAIL_BYTES:
                f.seek(-TAIL_BYTES, 2)
                data += b"\n" + f.read(TAIL_BYTES)
    except OSError as error:
        raise unreadable(str(path), error.strerror or str(error), "check its permissions") from error
    return parse_output(data, str(path), rank, ranks_by_pid)
