"""How much of the host's memory torch's flight recorder may take: its size is given in entries, not in bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DEFAULT_ENTRIES = 2000
# Source: measured, the record of a call with its frames takes about this much or more.
BYTES_PER_ENTRY = 500
MOST_ENTRIES = 100_000


def flight_recorder_size(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Two lines for people: how many entries each rank keeps and about how many MB, and a warning, empty if all is well."""
    environ = os.environ if environ is None else environ
    name, text = next(((n, environ[n].strip()) for n in VARIABLES if environ.get(n, "").strip()), ("", ""))
    if not name:
        return f"flight recorder: torch's own size, {_size(DEFAULT_ENTRIES)} per rank since torch 2.13", ""
    if not (text.isascii() and text.isdecimal()):
        return f"flight recorder: {name}={text}", f"{name}={text} is no number of entries"
    entries = int(text)
    if not entries:
        return f"flight recorder: off ({name}=0)", ""
    warning = ""
    if entries > MOST_ENTRIES:
        warning = (
            f"{name}={entries} is a number of entries, not of bytes: up to {_megabytes(entries)} of host memory per rank; "
            f"{DEFAULT_ENTRIES} to {MOST_ENTRIES} are enough"
        )
    return f"flight recorder: {_size(entries)} per rank ({name})", warning


def _size(entries: int) -> str:
    return f"{entries:,} entries, about {_megabytes(entries)}"


def _megabytes(entries: int) -> str:
    return f"{max(entries * BYTES_PER_ENTRY / 1e6, 0.1):,.1f} MB"
