"""page.bin, the recorder's shared-memory page (format 1): progress that survives the death of its process."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from unhang.model import Frame, PendingCall
from unhang.read.files import read_bytes, unreadable

MAGIC = 0x31474E41484E55
MAGIC_BYTES = MAGIC.to_bytes(8, "little")
FORMAT = 1
PHASES = ("", "data", "forward", "backward", "optimizer", "checkpoint")
KINDS = (
    "",
    "send",
    "recv",
    "isend",
    "irecv",
    "new_group",
    "store_wait",
    "init_process_group",
    "destroy_process_group",
    "store_set",
    "monitored_barrier",
    "loader_end",
    "work_wait",
)
HEADER = struct.Struct("<12Q")
LATER_AT, LATER = HEADER.size, struct.Struct("<3Q")  # zero in what older recorders left: the header has room for 64
STATUS_AT, STATUS_SLOTS, STATUS = 4096, 128, struct.Struct("<Qqqq")
RING_AT, RING_SLOTS, RECORD_BYTES = 8192, 256, 256
RECORD = struct.Struct("<QQqqQQqq192s")
_FUTURE_NS = 1 << 62
_AWAITED_AT, _KIND = 8, 255  # bits of the word that holds the kind
_SAME_FOLDER = "\x1e"


@dataclass(frozen=True, slots=True)
class Page:
    """What the page says. Times in ns, wall clock except `heartbeat_ns` (CLOCK_MONOTONIC); 0 where never written.

    `skipped_steps`: optimizer steps that a loss scaler has left out since the last one that was taken. `samples`, `tokens`: of its loaders' batches.
    `groups`: numeric group id -> (last enqueued, last completed).
    """

    pid: int
    heartbeat_ns: int
    steps: int
    last_step_ns: int
    phase: str
    phase_since_ns: int
    initialized: bool
    ended: bool
    groups: dict[int, tuple[int, int]]
    pending: tuple[PendingCall, ...]
    skipped_steps: int = 0
    samples: int = 0
    tokens: int = 0


def read_page(path: Path) -> Page:
    """The page; parts that a short file lacks read as never written.

    Raises:
        UnreadableInput: it is no page, or of another format.
    """
    return parse_page(read_bytes(path, 1 << 20), str(path))


def parse_page(data: bytes, name: str = "page.bin") -> Page:
    """The page from its bytes.

    Raises:
        UnreadableInput: it is no page, or of another format.
    """
    if len(data) < HEADER.size or not data.startswith(MAGIC_BYTES):
        raise unreadable(name, "not a page of the recorder")
    header = HEADER.unpack_from(data)
    if header[1] != FORMAT:
        raise unreadable(name, f"page format {header[1]}", f"only format {FORMAT} can be read: use a newer unhang")
    skipped, samples, tokens = LATER.unpack_from(data, LATER_AT) if len(data) >= LATER_AT + LATER.size else (0, 0, 0)
    return Page(
        pid=header[2],
        heartbeat_ns=header[3],
        steps=header[4],
        last_step_ns=header[5],
        phase=PHASES[header[6]] if header[6] < len(PHASES) else "",
        phase_since_ns=header[7],
        initialized=header[9] >= 1,
        ended=header[10] == 1,
        groups=_groups(data),
        pending=_pending(data),
        skipped_steps=skipped,
        samples=samples,
        tokens=tokens,
    )


def _groups(data: bytes) -> dict[int, tuple[int, int]]:
    groups = {}
    for slot in range(STATUS_SLOTS):
        at = STATUS_AT + slot * STATUS.size
        if at + STATUS.size > len(data):
            break
        number, enqueued, completed, _ = STATUS.unpack_from(data, at)
        if number:
            groups[number - 1] = (enqueued, completed)
    return groups


def _pending(data: bytes) -> tuple[PendingCall, ...]:
    found = []
    for slot in range(RING_SLOTS):
        at = RING_AT + slot * RECORD_BYTES
        if at + RECORD_BYTES > len(data):
            break
        number, *fields = RECORD.unpack_from(data, at)
        if number and (number - 1) % RING_SLOTS == slot and 0 < fields[0] & _KIND < len(KINDS):
            found.append((number, _record(*fields)))
    return tuple(call for _, call in sorted(found, key=lambda pair: pair[0]))


def _record(
    kind: int, peer: int, index: int, started: int, ended: int, tag: int, nth: int, content: bytes
) -> PendingCall:
    cut = content[-1] != 0
    group, _, rest = content.split(b"\0", 1)[0].decode("utf-8", "ignore").partition("\x1f")
    detail, _, stack = rest.partition("\x1f")
    awaited_us = kind >> _AWAITED_AT
    return PendingCall(
        kind=KINDS[kind & _KIND],
        index=index,
        group=group,
        peer=peer if peer >= 0 else None,
        started_ns=started,
        ended_ns=ended if 0 < ended < _FUTURE_NS else None,
        frames=_frames(stack, cut),
        detail=detail,
        tag=tag,
        nth=nth,
        awaited_ns=started + awaited_us * 1000 if awaited_us else None,
    )


def _frames(stack: str, cut: bool) -> tuple[Frame, ...]:
    """`file:line:function|...`; of a cut text the last part counts only if it still names a function.

    Without a file it is that of the frame before; behind the mark, one in the same folder.
    """
    frames: list[Frame] = []
    for part in stack.split("|") if stack else ():
        file, *place = part.rsplit(":", 2)
        if len(place) != 2 or not place[0].isdecimal() or (cut and not place[1]):
            continue
        before = frames[-1].file if frames else ""
        if file.startswith(_SAME_FOLDER):
            file = f"{before.rpartition('/')[0]}/{file.removeprefix(_SAME_FOLDER)}"
        frames.append(Frame(file or before, int(place[0][:9]), place[1]))
    return tuple(frames)
