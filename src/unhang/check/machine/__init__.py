"""The area `machine`: limits, memory, folders; and what the kernel tells of its clock, and has said in its log."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unhang.check.areas import Context, Participants
from unhang.check.machine import folders, limits
from unhang.model import Reading, Unavailable
from unhang.model.evidence import Value
from unhang.read.logs import table

# The wall clock: whether it runs evenly, whether something keeps it right, and how far it is from that of another machine.

_ROUNDS = 3
_EXCHANGE_LIMIT_S = 20.0
_STA_UNSYNC = 0x40
_TIMEX_BYTES, _STATUS_WORD = 512, 5  # struct timex: modes, then longs offset, freq, maxerror, esterror, then status


class Bracket(NamedTuple):
    """The wall clock before and after something that all ranks did together: nobody left before everyone had come."""

    came_s: float
    left_s: float


class ClockOffset(NamedTuple):
    """How far another clock is ahead of ours, and how sure that is: the truth is within `offset_s` +- `uncertainty_s`."""

    offset_s: float
    uncertainty_s: float


def bracket_offset(own: Iterable[Bracket], other: Iterable[Bracket]) -> ClockOffset | None:
    """From meetings of two ranks, one bracket each. None where they contradict each other: a clock was set meanwhile.

    Who leaves has seen that the other had come: the other's `came_s` lies before our `left_s`, and ours before its own. Both
    bound the offset, as the two ways of a packet do in NTP (RFC 5905).
    """
    least, most = float("-inf"), float("inf")
    for mine, its in zip(own, other, strict=False):
        least, most = max(least, its.came_s - mine.left_s), min(most, its.left_s - mine.came_s)
    if not least <= most or least == float("-inf"):
        return None
    return ClockOffset((least + most) / 2, (most - least) / 2)


class EvenClock:
    """Compares the wall clock with one that cannot be set."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def jump_s(self) -> float:
        """By how much the wall clock has jumped since the beginning; about 0 where nobody set it."""
        return (time.time() - self._wall) - (time.monotonic() - self._steady)

    def read(self) -> Iterator[Reading]:
        """Whether the clock has jumped, and whether something keeps it right."""
        fields = {"jump_s": round(self.jump_s(), 3), "is_synchronised": is_synchronised()}
        yield Reading("machine.clock", "", fields)


def is_synchronised() -> bool | None:
    """Whether the kernel knows of somebody (NTP, PTP) that keeps its clock right; None where it does not say."""
    with suppress(OSError, AttributeError, ValueError):
        libc = ctypes.CDLL(None, use_errno=True)
        words = (ctypes.c_long * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_long)))()
        if sys.platform == "linux" and libc.adjtimex(ctypes.byref(words)) >= 0:
            return not words[_STATUS_WORD] & _STA_UNSYNC
    return None


def read_offset(participants: Participants) -> Iterator[Reading | Unavailable]:
    """How far this rank's clock is ahead of the first rank's. Blocks up to the limits of four exchanges."""
    brackets: list[Bracket | None] = []
    for number in range(_ROUNDS):
        came_s = time.time()
        met = participants.exchange(f"machine/clock/{number}", None, _EXCHANGE_LIMIT_S)
        is_whole = len(met) > 1 and set(met) >= set(participants.present)
        brackets.append(Bracket(came_s, time.time()) if is_whole else None)
    everyone: dict[int, Any] = participants.exchange("machine/clocks", brackets, _EXCHANGE_LIMIT_S)
    first = min(everyone)
    pairs = [(Bracket(*a), b) for a, b in zip(everyone[first], brackets, strict=False) if a and b]
    found = bracket_offset([theirs for theirs, _ in pairs], [ours for _, ours in pairs])
    if len(everyone) < 2 or found is None:
        yield Unavailable("machine.clock_offset", "the ranks did not meet, or a clock was set while they did")
        return
    offset_s, uncertainty_s = (0.0, 0.0) if first == participants.member.rank else found
    fields = {"offset_s": round(offset_s, 4), "uncertainty_s": round(uncertainty_s, 4), "reference_rank": first}
    yield Reading("machine.clock_offset", "", fields)


# The kernel's log, with ages. Reading it does not wait for new messages.

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


def kernel_log() -> Iterator[Reading]:
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


SCOPE = "rank"
LIMIT_S = 25.0

Read = Callable[[], Iterator[Reading]]
OF_EACH_RANK: dict[str, Read] = {"machine.cores": limits.cores, "machine.limit": limits.limits}
OF_THE_HOST: dict[str, Read] = {
    "machine.memory": limits.memory,
    "machine.shared_memory": limits.shared_memory,
    "machine.shm_leftovers": limits.shm_leftovers,
    "machine.processes": limits.processes,
    "machine.tracing": limits.tracing,
    "machine.kernel_log": kernel_log,
}


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """What belongs to each rank on every rank, and what the host has in common on one rank of it."""
    even = EvenClock()
    yield from _each(OF_EACH_RANK)
    if context.member.is_first_on_host:
        yield from _each(OF_THE_HOST)
        yield from folders.read_folders(context)
        yield from even.read()


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """Clocks against each other, and whether all see the same folders."""
    if context.participants.is_alone:
        reason = "one process; torchrun or srun starts it on all nodes"
        yield from (Unavailable(kind, reason) for kind in ("machine.clock_offset", "machine.folder_shared"))
        return
    yield from read_offset(context.participants)
    yield from folders.read_shared(context)


def _each(facts: dict[str, Read]) -> Iterator[Reading | Unavailable]:
    """What is read, or why it cannot be."""
    for kind, read in facts.items():
        try:
            yield from read()
        except (OSError, ValueError, RuntimeError) as error:
            yield Unavailable(kind, str(error)[:300])
