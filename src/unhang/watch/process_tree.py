"""The processes of a job, by /proc: who they are, in which system calls they wait, how to end them all, and how to fork one of our own beside them.

Source: proc(5): /proc/PID/task/TID/syscall and wchan, /proc/PID/fd, /proc/PID/mem.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import stat
import struct
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15
_ARG_START, _MOST_ARGUMENTS = 45, 1 << 21  # the place in /proc/PID/stat behind the name
TERM_GRACE_S = 3.0
KILL_WAIT_S = 5.0
HOLD_S = 2.0


class Process(NamedTuple):
    """One process for ever: a pid that is used again has another start time (clock ticks since boot)."""

    pid: int
    start_time: int


class _Stat(NamedTuple):
    process: Process
    parent: int
    state: str


def stat_of(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, from the state on; None where it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split() or None
    return None


def line_of(path: str | Path, begins: str) -> str:
    """The first line of a file of the kernel's that begins so, without that. Raises: OSError, StopIteration."""
    lines = Path(path).read_text().splitlines()
    return next(line for line in lines if line.startswith(begins)).removeprefix(begins)


def _read_stat(pid: int) -> _Stat | None:
    if not (fields := stat_of(pid)):
        return None
    state, parent, *rest = fields
    return _Stat(Process(pid, int(rest[17])), int(parent), state)


def identify(pid: int) -> Process | None:
    """The process that has this pid now, None if there is none (a zombie is none)."""
    stat = _read_stat(pid)
    return stat.process if stat and stat.state not in "ZX" else None


def parent_of(pid: int) -> int:
    """The process above it now, 0 if there is none."""
    stat = _read_stat(pid)
    return stat.parent if stat else 0


def _children() -> dict[int, list[_Stat]]:
    """Every process by its parent; zombies too, because they may still have living children for a moment."""
    by_parent: dict[int, list[_Stat]] = {}
    for entry in os.listdir("/proc"):
        stat = _read_stat(int(entry)) if entry.isdigit() else None
        if stat:
            by_parent.setdefault(stat.parent, []).append(stat)
    return by_parent


def _below(roots: Iterable[_Stat], by_parent: dict[int, list[_Stat]]) -> list[Process]:
    found: dict[int, _Stat] = {}
    todo = list(roots)
    while todo:
        stat = todo.pop()
        if stat.process.pid not in found:
            found[stat.process.pid] = stat
            todo += by_parent.get(stat.process.pid, [])
    return [s.process for s in found.values() if s.state not in "ZX"]


def descendants_of(pid: int) -> list[Process]:
    """All living descendants of `pid`, without itself and without those that were orphaned to another parent."""
    by_parent = _children()
    return _below(by_parent.get(pid, []), by_parent)


@dataclass(frozen=True)
class JobTree:
    """All processes of a job: everything below `keeper`, the child subreaper that started it, but the `spared`.

    No descendant can escape a subreaper: setsid and double forks end up as its children. `spared`: the keeper's other
    children (relay, watcher, and what it had before the job started), with all that is below them.
    """

    keeper: int
    spared: Collection[Process] = ()

    def members(self) -> list[Process]:
        """The living processes of the job, its root included."""
        by_parent = _children()
        roots = [s for s in by_parent.get(self.keeper, []) if s.process not in self.spared]
        return _below(roots, by_parent)


def send(process: Process, signo: int) -> bool:
    """Sends a signal to exactly this process, whoever has its pid by now. False if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # no pidfd here (old kernel, sandbox, no descriptor left): the check below has to do
        handle = -1
    try:
        if identify(process.pid) != process:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, signo)
        else:
            os.kill(process.pid, signo)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def end(
    members: Callable[[], list[Process]],
    reap: Callable[[], None] = lambda: None,
    grace_s: float = TERM_GRACE_S,
    last_s: float = KILL_WAIT_S,
) -> list[Process]:
    """Ends processes: SIGTERM, after `grace_s` SIGKILL. `members` is asked again and again, so newborns are ended too.

    Returns:
        Those that outlived even SIGKILL by `last_s` (sleeping in the kernel).

    Blocks: up to `grace_s` + `last_s`.
    """
    terminated: set[Process] = set()
    kill_at = time.monotonic() + grace_s
    while left := members():
        now = time.monotonic()
        if now > kill_at + last_s:
            break
        for process in left:
            if now >= kill_at:
                send(process, signal.SIGKILL)
            elif process not in terminated:
                terminated.add(process)
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)
        time.sleep(0.02)
        reap()
    return left


def _prctl(option: int, argument: object) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def become_subreaper() -> None:
    """Makes orphans below this process its children, so that no process of the job can get away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _keep_only(keep: Collection[int]) -> None:
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in keep:
            with suppress(OSError):
                os.close(int(entry))


def fork_worker(
    name: str, body: Callable[[], None], keep: Collection[int], errors_to: Path | None, like: int | None = None
) -> int:
    """Forks a process that does `body` and ends; of our descriptors it has only `keep`. Returns its pid.

    `like`: a process whose command line it shows as its own, so that `pkill -f` finds both or neither. What is not in `keep` of stdin,
    stdout and stderr becomes /dev/null; with `errors_to`, stderr becomes that file.

    Raises:
        OSError: no process could be had.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _prctl(_PR_SET_NAME, name.encode())
        _show(name, like)
        _keep_only(keep)
        for number in (0, 1, 2):
            if number not in keep:
                os.open(os.devnull, os.O_RDWR)  # the lowest free number, and they are taken in order
        if errors_to:
            with suppress(OSError):
                log = os.open(errors_to, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 2)
        body()
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may unwind into the parent's code from here
        with suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _show(name: str, like: int | None) -> None:
    """Lets ps show the name for the whole command line, where setproctitle is installed; or the command of the process `like`."""
    with suppress(OSError, ImportError):
        command = Path(f"/proc/{like}/cmdline").read_bytes() if like else b""
        if like is None:
            importlib.import_module("setproctitle").setproctitle(name)
        elif command:
            fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
            start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
            room = (
                end - start - 1
            )  # where our own arguments stand; what of the command is too long for it is cut in front
            if 0 < room < _MOST_ARGUMENTS:
                ctypes.memmove(start, command[-room:].ljust(room + 1, b"\0"), room + 1)


def rank_pids(run_dir: Path) -> set[int]:
    """The processes that have registered as ranks, whether they still live or not."""
    with suppress(OSError):
        return {int(pid) for name in os.listdir(run_dir / "ranks") if (pid := name.rpartition("-")[2]).isdigit()}
    return set()


def launchers_of(ranks: Collection[int], root: int) -> list[Process]:
    """The job's first process and all between it and its ranks, the first one first; none where it is a rank itself."""
    found: dict[int, Process] = {}
    for rank in ranks:
        above: list[Process] = []
        pid = parent_of(rank)
        while pid and pid not in ranks and pid not in found and (process := identify(pid)):
            above.append(process)
            if pid == root:
                break
            pid = parent_of(pid)
        if above and (above[-1].pid == root or parent_of(above[-1].pid) in found):
            found.update({process.pid: process for process in reversed(above)})
    return list(found.values())


class Hold:
    """A signal held back. The launchers are stopped meanwhile: a signal to the whole group has come to them already.

    Ranks go on: they must answer. Whoever makes it lets the launchers go, whatever happens. `root`: our unreaped child.
    """

    def __init__(self, run_dir: Path, root: int) -> None:
        self._ranks = rank_pids(run_dir)
        self.passed_on: list[int] = []
        self.until = time.monotonic() + HOLD_S
        self._stopped: list[Process] = []
        if self._ranks and root not in self._ranks:
            os.kill(root, signal.SIGSTOP)  # at once: it would hand the signal down within a millisecond or two
            self._stopped += [first] if (first := identify(root)) else []
        others = (p for p in launchers_of(self._ranks, root) if p.pid != root)
        self._stopped += [p for p in others if send(p, signal.SIGSTOP)]

    @property
    def is_needed(self) -> bool:
        """Whether there is a rank of which anything could be kept."""
        return any(identify(pid) for pid in self._ranks)

    def let_launchers_go(self) -> None:
        """Lets them go on. Blocks: never."""
        while self._stopped:
            send(self._stopped.pop(), signal.SIGCONT)


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
