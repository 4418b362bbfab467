"""What the kernel has said since it started, with ages. Reading it does not wait for new messages."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unhang.model import Reading
from unhang.model.evidence import Value
from unhang.read.logs.patterns import table

DEVICE = Path("/dev/kmsg")
DAY_S = 86_400.0
_MOST_RECORD, _MOST_BUFFER = 1 << 13, 1 << 24
_MOST_READINGS, _MOST_SHOWN = 64, 200
_SYSLOG_READ_ALL, _SYSLOG_SIZE = 3, 10
_LINE = re.compile(r"^(?:<(?P<priority>\d+)>)?\[ *(?P<seconds>\d+\.\d+)\] ?(?P<text>.*)$")
_FIELDS = ("code", "bus", "name", "severity", "seconds")
_REMOVABLE = re.compile(r"^(?:sr|fd|loop|zram)\d+$")

TABLES = ("kernel", "machine/kernel")


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """`level`: 0 (emergency) to 7 (debugging). `time_s`: since the kernel started."""

    time_s: float
    level: int
    text: str


def kernel_messages(limit_s: float = 0.5, device: Path = DEVICE) -> tuple[KernelMessage, ...]:
    """All that the kernel still has, the oldest first. Blocks up to `limit_s`; what is not read by then is left out.

    Raises:
        OSError: it does not show them (only to root, where kernel.dmesg_restrict is 1).
    """
    try:
        return tuple(_records(device, limit_s))
    except OSError as error:
        try:
            return parse_lines(_buffer())
        except OSError:
            raise OSError(error.errno, f"{device}: {error.strerror}") from error


def _records(device: Path, limit_s: float) -> Iterator[KernelMessage]:
    deadline = time.monotonic() + limit_s
    number = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while time.monotonic() < deadline:
            try:
                record = os.read(number, _MOST_RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:  # the record was overwritten meanwhile; the next read goes on behind it
                continue
            if not record:
                return
            if (message := parse_record(record)) is not None:
                yield message
    finally:
        os.close(number)


def parse_record(record: bytes) -> KernelMessage | None:
    """A record of /dev/kmsg: `priority,number,microseconds,flags;text`, then lines of its own dictionary."""
    head, _, rest = record.partition(b";")
    fields = head.split(b",")
    if len(fields) < 3 or not fields[0].isdigit() or not fields[2].isdigit():
        return None
    return KernelMessage(int(fields[2]) / 1e6, int(fields[0]) & 7, rest.split(b"\n")[0].decode(errors="replace"))


def parse_lines(text: str) -> tuple[KernelMessage, ...]:
    """Lines as dmesg writes them: `<3>[ 12.345678] text`."""
    return tuple(
        KernelMessage(float(match["seconds"]), int(match["priority"] or 6) & 7, match["text"])
        for line in text.splitlines()
        if (match := _LINE.match(line))
    )


def _buffer() -> str:
    """The kernel's ring by syslog(2), where there is no /dev/kmsg, as in most containers."""
    if sys.platform != "linux":
        raise OSError("the kernel's messages are read on Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(_SYSLOG_SIZE, None, 0)
    if 0 < size <= _MOST_BUFFER:
        buffer = ctypes.create_string_buffer(size)
        read = libc.klogctl(_SYSLOG_READ_ALL, buffer, size)
        if read >= 0:
            return buffer.raw[:read].decode(errors="replace")
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read() -> Iterator[Reading]:
    """How many messages there are, and what those of the last day say."""
    messages = kernel_messages()
    yield Reading("machine.kernel_log", "", {"messages": len(messages)})
    yield from kernel_readings(messages, time.monotonic())  # their clock: since the kernel started, without time asleep


def kernel_readings(messages: Iterable[KernelMessage], now_s: float) -> Iterator[Reading]:
    """One reading for all messages of the last day that say the same of the same thing: how many, and how old the last is."""
    found: dict[tuple[str, ...], dict[str, Value]] = {}
    for message in messages:
        age_s = max(0.0, now_s - message.time_s)
        if age_s > DAY_S:
            continue
        for kind, named in recognised(message.text):
            key = (kind, *(named.get(name, "") for name in ("code", "bus", "name", "severity")))
            one = found.setdefault(key, {"count": 0, **named})
            one |= {"count": int(one["count"] or 0) + 1, "age_s": round(age_s), "text": message.text[:_MOST_SHOWN]}
    for key, fields in list(found.items())[-_MOST_READINGS:]:
        yield Reading("machine.kernel", key[0], fields)


def recognised(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The kinds of a message, each with its named parts."""
    seen: set[str] = set()
    for pattern in (*table(TABLES[0]), *table(TABLES[1])):
        if pattern.kind in seen or not any(anchor in text for anchor in pattern.anchors):
            continue
        if (match := pattern.compiled.search(text)) is None:
            continue
        groups = {name: value for name, value in match.groupdict().items() if value}
        named = {name: groups[name] for name in _FIELDS if name in groups}
        if name := next((groups[n] for n in ("name", "lustre", "ext", "xfs", "nvme") if n in groups), ""):
            named["name"] = name
        if pattern.kind == "kernel.disk_error" and _REMOVABLE.match(name):
            continue
        seen.add(pattern.kind)
        yield pattern.kind, named
