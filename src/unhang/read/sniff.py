"""What a file is, by its content, and whose it is, by its name."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.read.files import decode_json, regular_size
from unhang.read.page import MAGIC_BYTES
from unhang.read.rank_folder import FOLDER_NAME

HEAD_BYTES = 1 << 16
MAX_SNIFFED_JSON_BYTES = 64 << 20


class Kind(Enum):
    """Formats that are recognised by content."""

    DUMP = "flight-recorder dump"
    STACKS = "py-spy dump"
    FAULTS = "faulthandler text"
    ELASTIC_ERROR = "torchelastic error file"
    PAGE = "recorder page"
    OUTPUT = "output"
    OTHER = "other"


_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)
_TORCHRUN_LOG = re.compile(r"attempt_\d+/(\d{1,7})/[^/]+$")


def rank_of_log(path: Path) -> int | None:
    """`rank3.log`, `r3-4711/stderr.log`, `attempt_0/3/stderr.log` -> the rank. Other numbers, as in `slurm-4711.out`, are none."""
    if named := _RANK.findall(path.name):
        return int(named[-1])
    if folder := FOLDER_NAME.match(path.parent.name):
        return int(folder[1])
    log = _TORCHRUN_LOG.search(str(path))
    return int(log[1]) if log else None


def rank_from_name(path: Path) -> int | None:
    """`nccl_trace_rank_3`, `dump_12.pickle`, `r3-4711/flight.json`, `attempt_0/3/stderr.log` -> the rank."""
    if (told := rank_of_log(path)) is not None:
        return told
    stem = path.name.split(".")[0] if path.suffix in (".json", ".pickle", ".pkl", ".bin", ".txt") else path.name
    numbers = re.findall(r"\d+", stem)
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 7 else None


def kind_of(path: Path) -> Kind:
    """The format of a file.

    Raises:
        UnreadableInput: it cannot be read.
    """
    if regular_size(path) == 0:
        return Kind.OTHER
    try:
        with path.open("rb") as f:
            head = f.read(HEAD_BYTES)
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}; check its permissions") from error
    start = head.lstrip()[:1]
    if head.startswith(MAGIC_BYTES):
        return Kind.PAGE
    if head[0] == 0x80 or (b"profiling_name" in head and b"pg_config" in head and start != b"{"):
        return Kind.DUMP
    if start == b"{" or (start == b"[" and head.lstrip()[1:].lstrip()[:1] == b"{"):  # else `[rank0]: ...`
        return _kind_of_json(path, head)
    if b"(most recent call first):" in head:
        return Kind.FAULTS
    return Kind.OTHER if head.count(b"\0") > len(head) // 2 + 16 else Kind.OUTPUT


def _kind_of_json(path: Path, head: bytes) -> Kind:
    if b'"pg_config"' in head or b'"pg_status"' in head:
        return Kind.DUMP
    if path.stat().st_size > MAX_SNIFFED_JSON_BYTES:
        return Kind.OUTPUT
    try:
        value = decode_json(path.read_bytes(), str(path))
    except (UnreadableInput, OSError):
        return Kind.DUMP if b'"entries"' in head and b'"version"' in head else Kind.OUTPUT
    if isinstance(value, dict):
        if "entries" in value and "version" in value:
            return Kind.DUMP
        return Kind.ELASTIC_ERROR if "message" in value and len(value) <= 2 else Kind.OTHER
    is_stacks = isinstance(value, list) and bool(value) and all(isinstance(t, dict) and "frames" in t for t in value)
    return Kind.STACKS if is_stacks else Kind.OTHER
