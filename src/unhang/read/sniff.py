"""What a file is, by its content, and whose it is, by its name; and why one is no evidence."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.read.dumps.archive import compression
from unhang.read.dumps.identity import is_dump
from unhang.read.files import decode_json, regular_size
from unhang.read.logs.decode import is_document, pasted, records_of, unwrap, wide_encoding
from unhang.read.page import MAGIC_BYTES
from unhang.read.rank_folder import FOLDER_NAME
from unhang.read.ras import is_ras
from unhang.read.runs import is_own, is_own_file

HEAD_BYTES = 1 << 16
MAX_SNIFFED_JSON_BYTES = 64 << 20
_OF_NO_TEXT = bytes(set(range(1, 32)) - set(b"\t\n\v\f\r\x1b\b\a"))
_MOST = 0.05  # of bytes chosen at random a tenth are such


class Kind(Enum):
    """Formats that are recognised by content. Text is an output, with all that lies in it, unless the whole of it is something else."""

    DUMP = "flight-recorder dump"
    STACKS = "py-spy dump"
    ELASTIC_ERROR = "torchelastic error file"
    PAGE = "recorder page"
    OUTPUT = "output"
    OTHER = "other"


_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)
_STACKS = re.compile(r"[a-z_]*(?:stack|fault|trace|dump)[a-z_]*[_.-]?(\d{1,4})(?:\.txt)?", re.IGNORECASE)
_TORCHRUN_LOG = re.compile(r"attempt_\d+/(\d{1,7})/[^/]+$")


def rank_of_log(path: Path) -> int | None:
    """`rank3.log`, `r3-4711/stderr.log`, `attempt_0/3/stderr.log` -> the rank. Other numbers, as in `slurm-4711.out`, are none."""
    if named := _RANK.findall(path.name):
        return int(named[-1])
    if folder := FOLDER_NAME.match(path.parent.name):
        return int(folder[1])
    log = _TORCHRUN_LOG.search(str(path))
    return int(log[1]) if log else None


def rank_of_stacks(path: Path) -> int | None:
    """The rank whose stacks a text holds: as of a log, and `stacks_3.txt`. A longer number is that of a process."""
    if (rank := rank_of_log(path)) is not None:
        return rank
    named = _STACKS.fullmatch(path.name)
    return int(named[1]) if named else None


def rank_from_name(path: Path) -> int | None:
    """`nccl_trace_rank_3`, `dump_12.pickle`, `r3-4711/flight.json`, `attempt_0/3/stderr.log` -> the rank."""
    if (rank := rank_of_log(path)) is not None:
        return rank
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
    if head[0] == 0x80 or (start != b"{" and is_dump(head)):
        return Kind.DUMP
    if start == b"{" or (start == b"[" and head.lstrip()[1:].lstrip()[:1] == b"{"):  # else `[rank0]: ...`
        return _kind_of_json(path, head)
    if is_binary(head) or is_own(path, head) or _is_only_advice(path, head):
        return Kind.OTHER
    return Kind.OUTPUT


def _is_only_advice(path: Path, head: bytes) -> bool:
    """Whether it is the whole of a document into which no output was pasted."""
    if len(head) >= HEAD_BYTES or b"#" not in head:
        return False
    lines = head.decode("utf-8", "replace").splitlines()
    return is_document(lines, path.name) and not any(line.strip() for _, line in pasted(list(enumerate(lines, 1))))


def _kind_of_json(path: Path, head: bytes) -> Kind:
    if b'"pg_config"' in head or b'"pg_status"' in head:
        return Kind.DUMP
    if path.stat().st_size > MAX_SNIFFED_JSON_BYTES:
        return Kind.OUTPUT
    try:
        value = decode_json(path.read_bytes(), str(path))
    except (UnreadableInput, OSError):
        return Kind.DUMP if b'"version"' in head and is_dump(head) else Kind.OUTPUT
    if isinstance(value, dict):
        if "entries" in value and "version" in value:
            return Kind.DUMP
        if "message" in value and len(value) <= 2:
            return Kind.ELASTIC_ERROR
        text = head.decode("utf-8", "replace")
        is_log = is_ras(text) or unwrap(text) or records_of(value)
        return Kind.OUTPUT if is_log else Kind.OTHER
    is_stacks = isinstance(value, list) and bool(value) and all(isinstance(t, dict) and "frames" in t for t in value)
    return Kind.STACKS if is_stacks else Kind.OUTPUT if records_of(value) else Kind.OTHER


def is_binary(head: bytes) -> bool:
    """Whether data that begins like this is neither text, of whatever encoding, nor compressed. A log may have holes."""
    if compression(head) or wide_encoding(head):
        return False
    rest = head.replace(b"\0", b"")
    if len(head) - len(rest) > len(head) // 2 + 16:
        return True
    return len(rest) - len(rest.translate(None, _OF_NO_TEXT)) > max(2, _MOST * len(rest))


def why_no_evidence(path: Path) -> str:
    """What is wrong with a file whose format is not known."""
    if is_own_file(path):
        return "unhang wrote it, and it is no evidence; give the bundle of the run"
    if not regular_size(path):
        return "it is empty"
    with path.open("rb") as f:
        head = f.read(HEAD_BYTES)
    if is_binary(head):
        return "it is not a log, a dump or a report"
    if _is_only_advice(path, head):
        return f"no output of a job is pasted into this document; 'unhang env {path.name}' and 'unhang explain {path.name}' judge what it advises"
    seen = head.decode("utf-8", "replace").strip()
    what = "JSON without lines of a log" if seen[:1] in ("{", "[") else f"{len(seen.splitlines())} lines of text"
    return f"it is not a log, a dump or a report: {what}, beginning with {seen.splitlines()[0][:80]!r}"
