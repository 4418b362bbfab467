"""In which system call each thread of a process waits, and on what file: told by /proc, where it may be read.

Source: proc(5): /proc/PID/task/TID/syscall and wchan, /proc/PID/fd, /proc/PID/mem.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path

_MOST_THREADS = 64
_X86_64 = {
    0: "read", 1: "write", 2: "open", 7: "poll", 23: "select", 35: "nanosleep", 42: "connect", 43: "accept",
    44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 202: "futex",
    230: "nanosleep", 232: "epoll_wait", 247: "waitid", 257: "open", 270: "select", 271: "poll", 281: "epoll_wait",
    288: "accept",
}  # fmt: skip
_AARCH64 = {
    22: "epoll_wait", 25: "fcntl", 32: "flock", 56: "open", 63: "read", 64: "write", 72: "select", 73: "poll",
    95: "waitid", 98: "futex", 101: "nanosleep", 115: "nanosleep", 202: "accept", 203: "connect", 206: "sendto",
    207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept", 260: "wait4",
}  # fmt: skip
_CALLS = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(os.uname().machine, {})
_CLOCK_NANOSLEEP, _TIMER_ABSTIME = {"x86_64": 230, "aarch64": 115}.get(os.uname().machine, -1), 1
_OF_A_FILE = (
    "read", "write", "connect", "accept", "sendto", "sendmsg", "recvfrom", "recvmsg", "fcntl", "flock",
)  # fmt: skip
_FIFO_PARTNER = ("wait_for_partner", "fifo_open")


def kernel_waits(pid: int) -> dict[str, dict[str, str]]:
    """For each thread that waits: `call`, the system call, and `file`: socket, pipe, terminal, "FIFO PATH" or "file PATH".

    Of a lock on a file also `holder`: who has it. By the thread's number, the main thread's is the pid. A thread that runs, or of which nothing may be read, is left out.
    """
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))[:_MOST_THREADS]
    except OSError:
        return {}
    found = {}
    for thread in threads:
        with suppress(OSError, ValueError, IndexError):
            if wait := _wait(pid, thread):
                found[str(thread)] = wait
    return found


def reads_its_input(pid: int) -> bool:
    """Whether the main thread waits for something on standard input."""
    with suppress(OSError, ValueError, IndexError):
        number, first, *_ = Path(f"/proc/{pid}/syscall").read_text().split()
        return _CALLS.get(int(number)) == "read" and int(first, 16) == 0
    return False


def sleep_left_s(pid: int) -> float | None:
    """How long the main thread still sleeps, of its own will, by the end that it gave to the kernel; None where it does not or that is not told.

    Source: clock_nanosleep(2); Python sleeps until a time of CLOCK_MONOTONIC.
    """
    with suppress(OSError, ValueError, IndexError, struct.error):
        number, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
        clock, flags, request = (int(a, 16) for a in arguments[:3])
        if int(number) == _CLOCK_NANOSLEEP and (clock, flags) == (time.CLOCK_MONOTONIC, _TIMER_ABSTIME):
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                memory.seek(request)
                until_s, and_ns = struct.unpack("qq", memory.read(16))
            left_s: float = until_s + and_ns / 1e9 - time.clock_gettime(time.CLOCK_MONOTONIC)
            return max(0.0, left_s)
    return None


def _wait(pid: int, thread: int) -> dict[str, str]:
    number, *arguments = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
    call = _CALLS.get(int(number), "") if number.isdecimal() else ""
    if call == "open":
        wchan = Path(f"/proc/{pid}/task/{thread}/wchan").read_text()
        return {"call": call, "file": "FIFO"} if wchan.startswith(_FIFO_PARTNER) else {"call": call}
    if call == "poll":
        return {"call": call, "file": _polled(pid, int(arguments[0], 16), int(arguments[1], 16))}
    if call in _OF_A_FILE:
        held = {"holder": str(holder)} if call in ("flock", "fcntl") and (holder := _holder(pid)) else {}
        return {"call": call, "file": _file(pid, int(arguments[0], 16)), **held}
    return {"call": call} if call else {}


def _holder(waiter: int) -> int:
    """The process that holds the lock on a file for which another one waits; 0 where that is not told. Source: proc_locks(5)."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    number = next((fields[0] for fields in lines if fields[1] == "->" and fields[5] == str(waiter)), None)
    held = (fields[4] for fields in lines if fields[0] == number and fields[1] != "->")
    return next((int(pid) for pid in held if pid.isdecimal()), 0)


def _polled(pid: int, address: int, count: int) -> str:
    """The file that is polled, if it is one."""
    if count != 1:
        return ""
    with suppress(OSError, struct.error), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return _file(pid, struct.unpack("i", memory.read(4))[0])
    return ""


def _file(pid: int, descriptor: int) -> str:
    link = f"/proc/{pid}/fd/{descriptor}"
    name = os.readlink(link)
    if name.startswith(("socket:", "pipe:")):
        return name.partition(":")[0]
    if name.startswith(("/dev/pts/", "/dev/tty")):
        return "terminal"
    with suppress(OSError):
        if stat.S_ISFIFO(os.stat(link).st_mode):
            return f"FIFO {name}"
    return f"file {name}" if name.startswith("/") and not name.startswith("/dev/") else ""
