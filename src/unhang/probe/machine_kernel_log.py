"""What the kernel has said since it started, with ages. Reading it does not wait for new messages."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/kmsg")
_MOST_RECORD = 1 << 13
_MOST_TEXT = 1 << 24
_SYSLOG_READ_ALL, _SYSLOG_SIZE = 3, 10
_LINE = re.compile(r"^(?:<(?P<priority>\d+)>)?\[ *(?P<seconds>\d+\.\d+)\] ?(?P<text>.*)$")


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
    if 0 < size <= _MOST_TEXT:
        buffer = ctypes.create_string_buffer(size)
        read = libc.klogctl(_SYSLOG_READ_ALL, buffer, size)
        if read >= 0:
            return buffer.raw[:read].decode(errors="replace")
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def now_s() -> float:
    """The clock of the messages: seconds since the kernel started, without time asleep."""
    return time.monotonic()
